"""Drivers of the plans of stages: what a stage takes stands in a table that is ours."""

from collections import Counter
from dataclasses import dataclass

from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class StagesReply(DriverReply):
    """result: what the answer returned, or None. raised: whether it raised a ValueError instead. most: how
    often it asked for the stage for which it asked most often. largest: the most devices of which it asked.
    """

    result: PlainData
    raised: bool
    most: int
    largest: int


@dataclass(frozen=True, slots=True)
class NestedReply(DriverReply):
    """result: what the answer returned. left: its arguments afterwards."""

    result: PlainData
    left: PlainData


def nested(
    answer: AnswerFunction,
    seconds: list[float],
    activation_bytes: list[int],
    weight_bytes: list[int],
    levels: list[tuple[int, float]],
) -> NestedReply:
    """The nested plan for these layers and levels."""
    result = answer(seconds, activation_bytes, weight_bytes, levels)
    return NestedReply(result, [seconds, activation_bytes, weight_bytes, levels])


def stages(
    answer: AnswerFunction,
    table: list[tuple[int, int, int, float]],
    layers: int,
    devices: int,
    micro_batches: int,
    sizes: tuple[int, ...],
) -> StagesReply:
    """The plan for a model whose stages take what the table says: begin, end, size and seconds of each."""
    seconds = {(begin, end, size): value for begin, end, size, value in table}
    asked: Counter[tuple[int, int, int]] = Counter()

    def stage_seconds(begin: int, end: int, size: int) -> float:
        asked[begin, end, size] += 1
        if (begin, end, size) not in seconds:
            raise LookupError(f"stage_seconds was asked for ({begin}, {end}, {size}), which is no stage here")
        return seconds[begin, end, size]

    result, raised = None, False
    try:
        result = answer(stage_seconds, layers, devices, micro_batches, sizes)
    except ValueError:
        raised = True
    largest = max((size for _, _, size in asked), default=0)
    return StagesReply(result, raised, max(asked.values(), default=0), largest)
