"""The grader of `BoundedClock`."""

import math
from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_08 import drivers


@dataclass(frozen=True, slots=True)
class Clock:
    """without_leave: also workers that may not go on tick. unasked, beside: see `drivers.ticked`."""

    workers: int = feature(3, lambda workers: f"{workers} worker{'s' * (workers > 1)}")
    bound: float = feature(2, "bound {:g}")
    without_leave: bool = False
    unasked: bool = False
    beside: bool = feature(False, lambda beside: "another clock beside it" if beside else "")


@dataclass(frozen=True, slots=True)
class Moments:
    """Who may go on before the first tick and after each; and whether the tick before is refused."""

    ticks: list[int]
    free: list[list[bool]]
    refused: list[bool]


def drawn(rng: Rng, clock: Clock) -> Moments:
    """At each moment one of those who may go on finishes a step, or if `without_leave` any one."""
    steps, workers = [0] * clock.workers, range(clock.workers)
    moments = Moments([], [[True] * clock.workers], [False])
    favourite = rng.choice(workers)
    for _ in range(9 * clock.workers):
        free = moments.free[-1]
        anyone = [worker for worker in workers if clock.without_leave or free[worker]]
        # One that is ahead of the others is where clocks differ.
        worker = favourite if favourite in anyone and rng.integer(0, 2) else rng.choice(anyone)
        moments.ticks.append(worker)
        moments.refused.append(not free[worker])
        steps[worker] += free[worker]
        moments.free.append([each - min(steps) <= clock.bound for each in steps])
    return moments


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
            # Once with nobody asking in between: a clock must not go by what it said last.
            vary=vary(without_leave=(True,)) + both(without_leave=True, unasked=True),
        ),
        Criterion(
            "two clocks",
            1,
            "What belongs to one clock is made in its __init__, with self.",
            vary=vary(beside=(True,)),
        ),
    ),
    hints=(
        "What has to be known of each worker? What of all of them together?",
        "Of which worker does it depend whether worker 3 may go on?",
    ),
)
def BoundedClock(answer: Answer, clock: Clock, rng: Rng) -> tuple[Finding, None]:  # noqa: N802
    """Asked of all workers, after each tick."""
    given = drawn(rng, clock)
    reply = answer.call(drivers.ticked, clock.workers, clock.bound, given.ticks, clock.beside, clock.unasked)
    errors = compare.side_by_side(reply.raised, given.refused)
    moments = compare.side_by_side(reply.told, given.free)
    for moment, ((seen, wanted), (raised, refused)) in enumerate(zip(moments, errors, strict=True)):
        done = f"after ticks of {given.ticks[max(0, moment - 8) : moment]}"
        done += f" (the last of {moment})" if moment > 8 else ""
        if raised != ("RuntimeError" if refused else ""):
            expected = "a RuntimeError" if refused else "no error"
            return Finding(
                False, f"{done}: the last raised {raised or 'nothing'}; expected {expected}."
            ), None
        asked = not clock.unasked or moment == len(given.ticks)
        if asked and not compare.same(seen, wanted):
            said = f"{done}: who may go on is {compare.shown(seen)}; expected {wanted}."
            return Finding(False, said), None
    return Finding(True, f"As expected after each of {len(given.ticks)} ticks."), None
