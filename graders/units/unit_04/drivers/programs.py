"""A program that `horovodrun` runs."""

from torch import Tensor

from graders.grading.answer import AnswerFunction
from graders.units.unit_04 import horovodrun
from graders.units.unit_04.replies import ProcessReply, RunReply


def under_horovodrun(answer: AnswerFunction, values: list[list[Tensor]], data: dict[str, Tensor]) -> RunReply:
    """What each process did in a run of both phases; see `graders.units.unit_04.horovodrun.run`."""
    try:
        begins, goes_on, failed = horovodrun.run(answer, values, data)
    except horovodrun.LauncherFailed as failure:
        return RunReply([], [], "", str(failure))
    return RunReply(
        [ProcessReply(**each) for each in begins], [ProcessReply(**each) for each in goes_on], failed, ""
    )
