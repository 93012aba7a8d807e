"""Forward and backward of a step of units of unit 09, told apart."""

from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.runtime.communication.events import Event
from graders.grading.communication import Step, steps_of
from graders.grading.kit import AnswerFailed, FailureKind, Observed
from graders.units.unit_09.models import computes, reaches
from graders.units.unit_09.replies import UnitsReply


@dataclass(frozen=True, slots=True)
class Half:
    """Forward or backward of a step of a rank: its calls, and the marks when each unit computes, in order."""

    step: Step
    name: str
    calls: list[Event]
    computes: list[Event]

    def __str__(self) -> str:
        return f"{self.step}, {self.name}"


def halves_of(run: Observed[UnitsReply]) -> Iterator[Half]:
    """Both passes of every step of every rank. Raises AnswerFailed if a mark is not there."""
    for step in steps_of(run, "backward ends"):
        turn = step.marks.get("backward begins")
        if turn is None:
            raise AnswerFailed(FailureKind.UNREADABLE, f"{step} has no backward.")
        for name, label in (("forward", computes), ("backward", reaches)):
            calls = [call for call in step.calls if (call.sequence < turn.sequence) == (name == "forward")]
            own = [label(number) for number in range(len(step.marks))]
            marks = [step.marks[each] for each in own if each in step.marks]
            yield Half(step, name, calls, marks if name == "forward" else marks[::-1])
