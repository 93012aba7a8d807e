"""The grader of `BoundedClock`."""

import math
from dataclasses import dataclass

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_08 import drivers


@dataclass(frozen=True, slots=True)
class Clock:
    """without_leave: also workers that may not go on tick. beside: see `drivers.ticked`."""

    workers: int = feature(3, lambda workers: f"{workers} worker{'s' * (workers > 1)}")
    bound: float = feature(2, "bound {:g}")
    without_leave: bool = False
    beside: bool = feature(False, lambda beside: "another clock beside it" if beside else "")


def ticks_of(rng: Rng, clock: Clock) -> list[tuple[int, bool, list[bool]]]:
    """At each moment one of those who may go on finishes a step, or if `without_leave` any one: who ticks,
    whether that is refused, and who may go on afterwards.
    """
    steps, found, free = [0] * clock.workers, [], [True] * clock.workers
    favourite = rng.choice(range(clock.workers))
    for _ in range(9 * clock.workers):
        anyone = [worker for worker in range(clock.workers) if clock.without_leave or free[worker]]
        # One that is ahead of the others is where clocks differ.
        worker = favourite if favourite in anyone and rng.integer(0, 2) else rng.choice(anyone)
        refused = not free[worker]
        steps[worker] += not refused
        free = [each - min(steps) <= clock.bound for each in steps]
        found.append((worker, refused, free))
    return found


@one_by_one(
    base=Clock(),
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "who may go on",
            3,
            "A worker may begin its next step if it is at most `bound` steps ahead of the slowest worker.",
            vary=vary(workers=(1, 5), bound=(1, 3)),
        ),
        Criterion(
            "no bound, and none ahead",
            1,
            "bound 0: all finish a step before anyone begins the next. math.inf: nobody ever waits.",
            vary=vary(bound=(0, math.inf)),
        ),
        Criterion(
            "without leave",
            2,
            "A worker that may not go on cannot have finished a step: RuntimeError, and nothing has changed.",
            vary=vary(without_leave=(True,)),
        ),
        Criterion(
            "two clocks", 1, "What belongs to one clock is made in __init__.", vary=vary(beside=(True,))
        ),
    ),
    hints=(
        "What has to be known of each worker? What of all of them together?",
        "Of which worker does it depend whether worker 3 may go on?",
    ),
)
def BoundedClock(answer: Answer, clock: Clock, rng: Rng) -> tuple[Finding, None]:  # noqa: N802
    """Asked of all workers, after each tick."""
    due = ticks_of(rng, clock)
    ticks = [worker for worker, _, _ in due]
    told = answer.call(drivers.ticked, clock.workers, clock.bound, ticks, clock.beside)
    for number, ((raised, free), (_, refused, wanted)) in enumerate(compare.side_by_side(told, due)):
        done = f"after ticks of {ticks[max(0, number - 7) : number + 1]}"
        error = "RuntimeError" if refused else ""
        if raised != error or not compare.same(free, wanted):
            said = (
                f"{done}: the last raised {raised or 'nothing'}, and who may go on is {compare.shown(free)}"
            )
            return Finding(False, f"{said}; expected {error or 'nothing'} and {wanted}."), None
    return Finding(True, f"As expected after each of {len(ticks)} ticks."), None
