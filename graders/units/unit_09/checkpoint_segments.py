"""The grader of `checkpoint_segments`."""

from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from graders.grading.cases import vary
from graders.grading.expected import Checked, Expected
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.drivers import call
from graders.units.functions.stage import Arguments, kept, of_function

SECONDS = 3.0
"""What many layers may take."""


@dataclass(frozen=True, slots=True)
class Chain:
    """count: of layers. draw: unless 0, layers that differ; else each keeps its input of one byte only."""

    count: int = feature(6, "{} layers")
    draw: int = feature(0, lambda draw: "that differ" if draw else "")


def chain(rng: Rng, case: Chain) -> Arguments:
    """The layers. Of those that are drawn some have large inputs, others keep much besides."""
    drawn = [(rng.integer(0, 9) ** 2, rng.integer(0, 9) ** 2) for _ in range(case.count)]
    return [drawn if case.draw else [(1, 0)] * case.count]


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if 150 layers are cut as well as can be, in time."""
    layers = [(rng.integer(1, 1000), rng.integer(0, 1000)) for _ in range(150)]
    lengths = answer.call(call, layers, computing=SECONDS)
    return as_low_as_can_be(layers, lengths, f"the answer for {len(layers)} layers")


@of_function(
    base=Chain(),
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "equal layers",
            4,
            "Backward begins with the last segment, when all checkpoints are still held; when it comes to "
            "the first, the others have gone. The list stays.",
            vary=vary(count=(1, 7, 10)),
            how=kept,
        ),
        Criterion(
            "layers that differ",
            7,
            "A segment's input may be dear or cheap to keep, and its layers small or large: neither equal "
            "numbers of layers nor segments that are filled up one after the other are enough. An input "
            "counts once, though it is a checkpoint and its layer keeps it.",
            vary=vary(draw=range(1, 9)),
        ),
        Criterion(
            "many layers",
            5,
            "150 layers have 2**149 cuts. Where the first segment ends, what is left to decide?",
            needs=("equal layers", "layers that differ"),
            ask=in_time,
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
    arguments=chain,
)
def checkpoint_segments(case: Chain, given: Arguments) -> Expected:
    """A cut than which no other has a lower peak."""
    (layers,) = given
    return Expected(Checked(partial(as_low_as_can_be, layers)), {"layers": layers}, returned=None)


def as_low_as_can_be(layers: list[tuple[int, int]], lengths: Any, what: str) -> Finding:
    """Passes if these are the lengths of segments, and no others have a lower peak."""
    numbers = type(lengths) is list and all(type(each) is int and each > 0 for each in lengths)
    if not numbers or sum(lengths) != len(layers):
        expected = f"a list of numbers above 0, {len(layers)} in all"
        return Finding(False, f"{what} is {compare.shown(lengths)}; expected {expected}.")
    peak, lowest = peak_of(lengths, layers), lowest_peak(layers)
    said = f"with {compare.shown(lengths)}, {what}, the peak is {peak}; {lowest} is possible."
    return Finding(peak == lowest, said)


def peak_of(lengths: list[int], layers: list[tuple[int, int]]) -> int:
    """The most bytes held in backward."""
    held = peak = 0
    for begin, end in pairwise([0, *accumulate(lengths)]):
        peak = max(peak, held + sum(map(sum, layers[begin:end])))
        held += layers[begin][0]
    return peak


def lowest_peak(layers: list[tuple[int, int]]) -> int:
    """That of the layers from each place on, from the last to the first."""
    sizes = list(map(sum, layers))
    lowest = [0] * (len(layers) + 1)
    for begin in reversed(range(len(layers))):
        whole = accumulate(sizes[begin:])
        lowest[begin] = min(
            max(own, layers[begin][0] + later) for own, later in zip(whole, lowest[begin + 1 :], strict=True)
        )
    return lowest[0]
