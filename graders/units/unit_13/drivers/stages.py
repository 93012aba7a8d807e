"""The driver of the plans of stages: what a stage takes stands in a table that is ours."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn


def stages(answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()) -> list[Called]:
    """The plans for models whose stages take what tables say: begin, end, size and seconds of each.

    Of each: what it gave, "ValueError" where it raised one; how often it asked for the stage for which it
    asked most often; and the most devices of which it asked.
    """

    def told(table: list[tuple[int, int, int, float]], *rest: PlainData) -> dict[str, PlainData]:
        seconds = {(begin, end, size): value for begin, end, size, value in table}
        asked: Counter[tuple[int, int, int]] = Counter()

        def stage_seconds(begin: int, end: int, size: int) -> float:
            asked[begin, end, size] += 1
            if (begin, end, size) not in seconds:
                raise LookupError(f"stage_seconds({begin}, {end}, {size}): there is no such stage")
            return seconds[begin, end, size]

        gave: Any
        try:
            gave = answer(stage_seconds, *rest)
        except ValueError:
            gave = "ValueError"
        most, largest = max(asked.values(), default=0), max((size for _, _, size in asked), default=0)
        return {"gave": gave, "most": most, "largest": largest}

    return in_turn(told, calls, layouts)
