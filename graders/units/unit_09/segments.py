"""Unit 09, computing again: which layers' inputs are checkpoints, so that the peak is as low as can be."""

from itertools import accumulate
from typing import Any

from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Rng,
    compare,
    exercise,
)
from graders.units.unit_09 import drivers

SECONDS = 3.0
"""What many layers may take."""

Layers = list[tuple[int, int]]


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "equal layers",
            3,
            "Backward begins with the last segment, when all checkpoints are still held; when it comes to "
            "the first, the others have gone.",
        ),
        Criterion(
            "layers that differ",
            7,
            "A segment's input may be dear or cheap to keep, and its layers small or large: neither equal "
            "numbers of layers nor segments that are filled up one after the other are enough. An input "
            "counts once, though it is a checkpoint and its layer keeps it.",
        ),
        Criterion("arguments unchanged", 1, "The caller still needs the list."),
        Criterion(
            "many layers",
            5,
            "150 layers have 2**149 cuts. Where the first segment ends, what is left to decide?",
            needs=("equal layers", "layers that differ"),
        ),
    ),
    hints=(
        "If you knew where the first segment ends, which bytes would be held all the while that later "
        "segments go through backward?",
        "lowest[k]: the lowest peak of the layers from k on, as if there were none before. What is it for "
        "the last layer?",
        "A first segment from k to j: its input is held throughout. Besides, either what it keeps itself, "
        "when its turn comes, or what the layers from j on need.",
    ),
)
def checkpoint_segments(answer: Answer, rng: Rng) -> Findings:
    """Equal layers, then drawn ones, for which all cuts are tried; then many."""
    equal = [[(1, 0)] * count for count in (1, 2, 6, 10)] + [[(3, 2)] * 7, [(2, 9)] * 5, [(0, 0)] * 2]
    yield "equal layers", compare.first_failure(_lowest(answer, layers) for layers in equal)
    drawn = [_drawn(rng, rng.integer(3, 8)) for _ in range(12)] + _telling()
    yield "layers that differ", compare.first_failure(_lowest(answer, layers) for layers in drawn)
    yield "arguments unchanged", _unchanged(answer, rng)
    yield "many layers", _in_time(answer, rng)


def _drawn(rng: Rng, count: int) -> Layers:
    """Layers some of which have large inputs, others keep much besides; a few have neither."""
    return [(rng.integer(0, 9) ** 2, rng.integer(0, 9) ** 2) for _ in range(count)]


def _telling() -> list[Layers]:
    """A dear input that a cut should avoid, a large layer at either end, bytes as of a real model."""
    return [
        [(1, 0), (1, 0), (50, 0), (1, 0), (1, 0), (1, 0)],
        [(1, 40), (1, 3), (1, 3), (1, 3), (1, 3)],
        [(1, 3), (1, 3), (1, 3), (1, 3), (1, 40)],
        [(2**28, 3 * 2**28), (2**26, 2**30), (2**28, 2**20), (2**30, 2**29)],
    ]


def _lowest(answer: Answer, layers: Layers) -> Finding:
    """Whether the answer is a cut, and no other has a lower peak."""
    result = answer.call(drivers.listed, list(layers)).result
    return _judged(result, layers, min(_peak(lengths, layers) for lengths in _cuts(len(layers))))


def _judged(result: Any, layers: Layers, lowest: int) -> Finding:
    given = compare.shown(layers) if len(layers) < 20 else f"{len(layers)} layers"
    is_list = type(result) is list and all(type(length) is int and length > 0 for length in result)
    if not is_list or sum(result) != len(layers):
        return Finding(
            False,
            f"{given}: got {compare.shown(result)}; expected a list of numbers above 0, sum {len(layers)}.",
        )
    peak = _peak(result, layers)
    return Finding(
        peak == lowest, f"{given}: with {compare.shown(result)} the peak is {peak}; {lowest} is possible."
    )


def _peak(lengths: list[int], layers: Layers) -> int:
    """The most bytes held in backward."""
    held = peak = end = 0
    for length in lengths:
        begin, end = end, end + length
        held += layers[begin][0]
        again = sum(x + inside for x, inside in layers[begin:end]) - layers[begin][0]
        peak = max(peak, held + again)
    return peak


def _cuts(count: int) -> list[list[int]]:
    """All ways to write a number as a sum of numbers above 0, in order."""
    if count == 0:
        return [[]]
    return [[first, *rest] for first in range(1, count + 1) for rest in _cuts(count - first)]


def _unchanged(answer: Answer, rng: Rng) -> Finding:
    layers = _drawn(rng, 6)
    reply = answer.call(drivers.listed, list(layers))
    return compare.equal(reply.arguments, [list(layers)], "The arguments after the call")


def _in_time(answer: Answer, rng: Rng) -> Finding:
    layers = [(rng.integer(1, 1000), rng.integer(0, 1000)) for _ in range(150)]
    try:
        result = answer.call(drivers.listed, list(layers), timeout=SECONDS).result
    except AnswerFailed as error:
        if error.kind is FailureKind.TIMED_OUT:
            return Finding(False, f"{len(layers)} layers: no answer after {SECONDS:g} s.")
        raise
    return _judged(result, layers, _lowest_of_many(layers))


def _lowest_of_many(layers: Layers) -> int:
    """The smallest bound that some cut keeps to, by halving."""
    until = [0, *accumulate(x + inside for x, inside in layers)]

    def suffices(bound: int) -> bool:
        # The fewest bytes of checkpoints with which the layers before each place can be cut.
        fewest: list[float] = [0.0]
        for end in range(1, len(until)):
            fewest.append(
                min(
                    (
                        fewest[begin] + layers[begin][0]
                        for begin in range(end)
                        if fewest[begin] + until[end] - until[begin] <= bound
                    ),
                    default=float("inf"),
                )
            )
        return fewest[-1] < float("inf")

    low, high = 0, until[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle + 1, high)
    return low
