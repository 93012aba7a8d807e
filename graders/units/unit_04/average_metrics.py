"""The grader of `average_metrics`."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from graders.grading.cases import vary
from graders.grading.expected import Checked, Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept, one_call
from graders.units.ranks.stage import Arguments, on_ranks

NAMES = ("accuracy", "loss", "top5")


@dataclass(frozen=True, slots=True)
class Metrics(Ranks):
    """samples: of each rank, about. turned: whether every second rank has the names in another order.
    digits: that have to be right. A rank without samples has NaN.
    """

    ranks: int = 3
    samples: tuple[int, ...] = feature((9, 90, 40), lambda samples: f"about {[*samples]} samples")
    turned: bool = feature(False, lambda turned: "names in another order on rank 1" * turned)
    digits: int = feature(5, lambda digits: f"{digits} digits")

    @property
    def launched(self) -> int:
        return len(self.samples)

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(range(len(self.samples)))

    @property
    def tolerance(self) -> float:
        return 10.0**-self.digits


def means_and_counts(rng: Rng, case: Metrics) -> list[Arguments]:
    """Of each rank its metrics, and how many samples it had."""
    given: list[Arguments] = []
    for place, about in enumerate(case.samples):
        count = about and about - rng.integer(0, 5)
        # Numbers that single precision does not hold.
        metrics = {name: rng.integer(1, 10**12) / 1e11 if count else math.nan for name in NAMES}
        names = NAMES[::-1] if case.turned and place % 2 else NAMES
        given.append([{name: metrics[name] for name in names}, count])
    return given


def unchanged(metrics: dict[str, float], seen: Any, what: str) -> Finding:
    """Passes if these are the metrics seen. Their text is looked at: NaN equals nothing."""
    return Finding(repr(seen) == repr(metrics), f"{what} are {compare.shown(seen)}; they have to stay.")


@on_ranks(
    base=Metrics(),
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "means over samples",
            1,
            "A rank with twice as many samples counts twice. The mean is the same on all ranks.",
            vary=vary(samples=((30,), (8, 20, 30, 70))),
        ),
        Criterion(
            "in double precision",
            1,
            "A tensor of the default dtype holds about seven digits, a float of Python sixteen.",
            vary=vary(digits=(12,)),
        ),
        Criterion(
            "names in any order",
            1,
            "What the ranks lay side by side has to be the same metric on all ranks: a set has no order. "
            "The means go into a dictionary of their own.",
            vary=vary(turned=(True,)),
            how=kept,
        ),
        Criterion(
            "ranks without samples",
            1,
            "0 * NaN is NaN: leave out what a rank without samples has.",
            vary=vary(samples=((0, 30, 20), (50, 9, 0))),
        ),
        Criterion(
            "one all_reduce", 1, "All metrics, and the number of samples, fit into one tensor.", how=one_call
        ),
    ),
    hints=(
        "What can be added over ranks, if means cannot?",
        "In which order would two ranks list the metrics, if they could not ask each other?",
    ),
    arguments=means_and_counts,
    calls=None,
    possible=lambda case: len(case.samples) > 1 or not case.turned,
    what="what rank {} returned",
)
def average_metrics(case: Metrics, given: list[Arguments]) -> list[Expected]:
    """The means over all samples of all ranks that have some."""
    some = [(metrics, count) for metrics, count in given if count]
    total = sum(count for _, count in some)
    means = {name: sum(metrics[name] * count for metrics, count in some) / total for name in NAMES}
    return [
        Expected(means, {"metrics": Checked(partial(unchanged, own)), "samples": count}, returned=None)
        for own, count in given
    ]
