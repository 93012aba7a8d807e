"""The driver of answers that raise ValueError where nothing is possible."""

from collections.abc import Sequence

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn


def choices(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """For each call what the answer gave, or that it raised ValueError."""

    def told(*arguments: PlainData) -> PlainData:
        try:
            return {"gave": answer(*arguments)}
        except ValueError as error:
            return {"raised": str(error)}

    return in_turn(told, calls, layouts)
