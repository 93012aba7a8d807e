"""Walks through a few plans, as they are asked for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from graders.grading.kit import Answer, AnswerFailed, FailureKind, Rng
from graders.units.unit_13.drivers import walks
from graders.units.unit_13.drivers.walks import WalkReply

STEPS = 6000


HALF = 8000
"""Steps of half a walk through two plans."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of `walks.walk`."""

    costs: list[float]
    start: int
    steps: int
    seed: int
    beta: float
    shy: bool = False

    def __str__(self) -> str:
        """The walk, in words."""
        return (
            f"Plans that cost {self.costs}, from plan {self.start} on, {self.steps} steps, seed {self.seed}, "
            f"beta {self.beta:g}" + ", plans that cannot be compared" * self.shy
        )

    def of(self, answer: Answer) -> WalkReply:
        """The walk. Raises AnswerFailed."""
        reply = answer.call(
            walks.walk, list(self.costs), self.start, self.steps, self.seed, self.beta, self.shy
        )
        if not all(0 <= plan < len(self.costs) for plan in (*reply.at, *reply.proposed)):
            raise AnswerFailed(
                FailureKind.UNREADABLE, "What came back of the walk has plans that do not exist."
            )
        return reply


def short_walks(rng: Rng, steps: int) -> list[Asked]:
    """Short walks that begin at a dear plan, to which three plans are the best ones; one where all cost the
    same, and one where they nearly do; and one without a step.
    """
    cases = []
    for plans in (5, 7, 9):
        costs = [2.0, 2.0, 2.0, *(float(rng.integer(3, 6)) for _ in range(plans - 3))]
        start, turn = rng.integer(3, plans - 1), rng.integer(0, plans - 1)
        costs = [*costs[turn:], *costs[:turn]]
        cases.append(Asked(costs, (start - turn) % plans, steps + plans, rng.integer(0, 999), beta=0.2))
    alike = Asked([3.0] * 8, rng.integer(0, 7), 30, rng.integer(0, 999), 1.0)
    nearly = Asked([2 + 1e-12 * (6 * place % 7) for place in range(7)], 1, 40, rng.integer(0, 999), 1.0)
    return [*cases, alike, nearly, Asked([3.0, 1.0, 2.0], 1, 0, 5, 1.0)]


def steep_walks(rng: Rng) -> Iterator[Asked]:
    """Gains too large for a power, and plans that cost more than anything."""
    yield Asked([1e6, 10.0, 2e6, 1e6 + 1], rng.choice((0, 2)), 30, rng.integer(0, 999), 1.0)
    yield Asked([math.inf, math.inf, math.inf, 4.0, 5.0], rng.integer(0, 2), 30, rng.integer(0, 999), 0.5)
    yield Asked([math.inf] * 3, 1, 12, rng.integer(0, 999), 2.0)


def long_walks(rng: Rng) -> Iterator[Asked]:
    """Walks long enough for shares to settle, with a large beta and with a small one; in the first all costs
    are so large that their powers are 0, and need more digits than a float32 has.
    """
    for beta, unit in ((2.5, 10**8), (0.4, 1)):
        offset = unit * rng.integer(3, 6)
        costs = [round(offset + steep / beta, 3) for steep in (0.0, 0.5, 1.0, 1.6)]
        turn = rng.integer(0, 3)
        yield Asked([*costs[turn:], *costs[:turn]], rng.integer(0, 3), STEPS, rng.integer(0, 999), beta)


def two_plans(rng: Rng) -> Asked:
    """A long walk through two plans, of which the dear one is worth a visit in five."""
    beta = rng.choice((0.5, 3.0))
    return Asked([2.0, 2.0 + math.log(4) / beta], 0, 2 * HALF, rng.integer(0, 999), beta)


def far_plans(rng: Rng) -> Asked:
    """A walk through two plans, of which the dear one is worth a visit in 160,000."""
    beta = rng.choice((0.5, 3.0))
    return Asked([2.0, 2.0 + 12 / beta], 0, STEPS, rng.integer(0, 999), beta)
