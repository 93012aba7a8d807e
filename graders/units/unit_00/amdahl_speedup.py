"""The grader of `amdahl_speedup`."""

from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, of_function

MANY = 10**6
"""Workers; who keeps the time of each in a list, as the unit's example does, has room for them."""


@dataclass(frozen=True, slots=True)
class Work:
    """workers: how many, at most. parallel: millionths between which the part lies that can be shared out."""

    workers: int = feature(30, "up to {} workers")
    parallel: tuple[int, int] = (50_000, 990_000)


def fraction_and_workers(rng: Rng, work: Work) -> Arguments:
    """A fraction, and one worker, or a drawn number of several."""
    return [rng.integer(*work.parallel) / 1_000_000, rng.integer(min(2, work.workers), work.workers)]


@of_function(
    base=Work(),
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            "partly serial",
            2,
            "The serial part takes as long as ever; only the parallel part is divided by the workers. Add "
            "the times, then divide.",
            vary=vary(workers=(300, MANY))
            # Next to nothing is parallel, or serial: a speedup near 1, and one far from both limits.
            + both(workers=2, parallel=(1000, 9000))
            + both(workers=MANY, parallel=(999_100, 999_990)),
        ),
        Criterion(
            "the ends",
            1,
            "One worker takes as long as before: a speedup of 1. If all can be shared, w workers are w times "
            "as fast; if nothing can, as fast as one.",
            vary=vary(workers=(1,), parallel=((0, 0), (1_000_000, 1_000_000))),
        ),
    ),
    hints=(
        "If one worker takes 1 second, how long is the serial part of it, and how long the parallel part?",
        "With w workers the parallel part takes parallel_fraction / w. What is the time altogether?",
    ),
    arguments=fraction_and_workers,
)
def amdahl_speedup(work: Work, given: Arguments) -> Expected:
    """Amdahl (1967)."""
    fraction, workers = given
    speedup = 1 / ((1 - fraction) + fraction / workers)
    return Expected(speedup, {"parallel_fraction": fraction, "workers": workers}, returned=None)
