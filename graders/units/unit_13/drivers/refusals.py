"""The driver of answers that raise ValueError where nothing is possible."""

from collections.abc import Sequence

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn


def choices(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """For each call what the answer gave; "ValueError" where it raised one."""

    def told(*arguments: PlainData) -> PlainData:
        try:
            return answer(*arguments)
        except ValueError:
            return "ValueError"

    return in_turn(told, calls, layouts)
