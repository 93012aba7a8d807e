"""Drivers of answers that choose; "ValueError" stands for one that raises it where nothing is possible."""

from collections import Counter
from collections.abc import Sequence

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn

Calls = list[list[PlainData]]


def choices(answer: AnswerFunction, calls: Calls, layouts: Sequence[str] = ()) -> list[Called]:
    """For each call what the answer gave."""
    return in_turn(lambda *given: _given(answer, *given), calls, layouts)


def stages(answer: AnswerFunction, calls: Calls, layouts: Sequence[str] = ()) -> list[Called]:
    """The plans for models whose stages take what tables say: begin, end, size and seconds of each.

    Of each: what it gave; how often it asked for the stage for which it asked most often; and the most
    devices of which it asked.
    """

    def told(table: list[tuple[int, int, int, float]], *rest: PlainData) -> dict[str, PlainData]:
        seconds = {(begin, end, size): value for begin, end, size, value in table}
        asked: Counter[tuple[int, int, int]] = Counter()

        def stage_seconds(begin: int, end: int, size: int) -> float:
            asked[begin, end, size] += 1
            if (begin, end, size) not in seconds:
                raise LookupError(f"stage_seconds({begin}, {end}, {size}): there is no such stage")
            return seconds[begin, end, size]

        gave = _given(answer, stage_seconds, *rest)
        most, largest = max(asked.values(), default=0), max((size for _, _, size in asked), default=0)
        return {"gave": gave, "most": most, "largest": largest}

    return in_turn(told, calls, layouts)


def _given(answer: AnswerFunction, *arguments: PlainData) -> PlainData:
    try:
        return answer(*arguments)
    except ValueError:
        return "ValueError"
