"""Unit 08, a bound on how far ahead: stale synchronous parallel training."""

import math
from dataclasses import dataclass
from itertools import chain

import torch

from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, compare, exercise
from graders.units.unit_08 import drivers
from graders.units.unit_08.drivers import TrainedReply
from graders.units.unit_08.on_the_server import Training, all_of, computing
from graders.units.unit_08.problems import Problem
from graders.units.unit_08.synchronous import STAR, kept, on_a_star

LEAD = "who may go on"


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            LEAD,
            3,
            "A worker may begin its next step if it is at most `bound` steps ahead of the slowest worker.",
        ),
        Criterion(
            "no bound, and none ahead",
            1,
            "bound 0: all finish a step before anyone begins the next. math.inf: nobody ever waits.",
        ),
        Criterion(
            "without leave",
            2,
            "A worker that may not go on cannot have finished a step: RuntimeError, and nothing has changed.",
        ),
        Criterion("two clocks", 1, "What belongs to one clock is made in its __init__, with self."),
    ),
    hints=(
        "What has to be known of each worker? What of all of them together?",
        "Of which worker does it depend whether worker 3 may go on?",
    ),
)
def BoundedClock(answer: Answer, rng: Rng) -> Findings:  # noqa: N802
    """Drawn schedules: at each moment one of those who may go on finishes a step, and all are asked."""
    usual = [Schedule.drawn(rng, workers, rng.integer(1, 3)) for workers in (1, 3, 5)]
    yield LEAD, compare.first_failure(each.agrees(answer) for each in usual)
    ends = [Schedule.drawn(rng, 3, 0), Schedule.drawn(rng, 3, math.inf)]
    yield "no bound, and none ahead", compare.first_failure(each.agrees(answer) for each in ends)
    forbidden = [Schedule.drawn(rng, 3, bound, without_leave=True) for bound in (1, 2)]
    # Once with nobody asking in between: a clock must not go by what it said last.
    yield (
        "without leave",
        compare.first_failure(each.agrees(answer, unasked=each.bound == 1) for each in forbidden),
    )
    yield "two clocks", Schedule.drawn(rng, 4, 1).agrees(answer, beside=True)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which worker ticks, one after another, and what a clock has to say before the first, and after each.

    told: for each moment who may go on. raised: whether the tick before it is refused; of the first, False.
    """

    workers: int
    bound: float
    ticks: list[int]
    told: list[list[bool]]
    raised: list[bool]

    @classmethod
    def drawn(cls, rng: Rng, workers: int, bound: float, without_leave: bool = False) -> "Schedule":
        steps, ticks = [0] * workers, list[int]()

        def free() -> list[bool]:
            return [each - min(steps) <= bound for each in steps]

        told, raised = [free()], [False]
        favourite = rng.integer(0, workers - 1)
        for _ in range(9 * workers):
            allowed = free()
            anyone = [worker for worker in range(workers) if without_leave or allowed[worker]]
            # One that is ahead of the others is where clocks differ.
            worker = favourite if favourite in anyone and rng.integer(0, 2) else rng.choice(anyone)
            ticks.append(worker)
            raised.append(not allowed[worker])
            steps[worker] += allowed[worker]
            told.append(free())
        return cls(workers, bound, ticks, told, raised)

    def agrees(self, answer: Answer, beside: bool = False, unasked: bool = False) -> Finding:
        """Passes if the answer says the same. beside, unasked: see `drivers.ticked`."""
        where = f"{compare.counted(self.workers, 'worker')}, bound {self.bound:g}"
        reply = answer.call(drivers.ticked, self.workers, self.bound, self.ticks, beside, unasked)
        errors = compare.side_by_side(reply.raised, self.raised)
        moments = compare.side_by_side(reply.told, self.told)
        for moment, ((seen, wanted), refused) in enumerate(zip(moments, errors, strict=True)):
            done = f"{where}, after ticks of {self.ticks[max(0, moment - 8) : moment]}"
            done += f" (the last of {moment})" if moment > 8 else ""
            if refused[0] != ("RuntimeError" if refused[1] else ""):
                text = f"the last raised {refused[0] or 'nothing'}"
                wanted_error = "a RuntimeError" if refused[1] else "no error"
                return Finding(False, f"{done}: {text}; expected {wanted_error}.")
            if unasked and moment < len(self.ticks):
                continue
            if not compare.same(seen, wanted):
                return Finding(False, f"{done}: who may go on is {compare.shown(seen)}; expected {wanted}.")
        return Finding(True, f"{where}: as expected after each of {len(self.ticks)} ticks.")


# --- Training

EVERY, MESSAGES = "every gradient once", "messages and bytes"
MILLISECOND = 1e-3


@exercise(
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            EVERY,
            2,
            "The server's weights move by -lr / K times each gradient, with K workers. Workers return None.",
        ),
        Criterion("w unchanged", 1, "The server's w is the caller's: train a copy."),
        Criterion(STAR, 1, "send and recv, and each message between a worker and rank 0."),
        Criterion(
            MESSAGES,
            2,
            "The weights go to each worker once a step, and its gradient comes back.",
            needs=(EVERY, STAR),
        ),
        Criterion(
            "lead at most the bound",
            2,
            "A worker that is too far ahead gets its weights later: who is waiting, and whose gradient ends "
            "the wait?",
            needs=(EVERY, STAR),
        ),
        Criterion(
            "nobody within it waits",
            2,
            "After each gradient: which of those who wait may go on now?",
            needs=(EVERY, STAR),
        ),
        Criterion(
            "weights as they are",
            1,
            "A worker gets the weights as they are when it goes on, not when it asked.",
            needs=(EVERY, STAR, MESSAGES),
        ),
    ),
    hints=(
        "Which workers wait for the server's answer at a moment? Keep them in a list.",
        "BoundedClock counts from 0, ranks of workers from 1.",
        "Receive a gradient, step, tick; then send the weights to all those waiting who may go on.",
    ),
)
def ssp_sgd(answer: Answer, rng: Rng) -> Findings:
    """Uneven workers, whose pace also changes, under several bounds."""
    cases = [
        _drawn(rng, [10, 25, 13], steps=4, bound=0, dtype=torch.float64),
        _drawn(rng, [70, 10, 18, 25], steps=6, bound=2),
        _drawn(rng, [10, 33], steps=5, bound=math.inf),
        _drawn(rng, [10, 13, 47], steps=6, bound=1),
    ]
    odd = [_drawn(rng, [10, 10], steps=0, bound=1), _drawn(rng, [10], steps=3, bound=0)]
    # The odd ones twice in a row: of that, the log is not judged.
    again: list[Observed[list[TrainedReply]]] = []
    runs: list[Observed[list[TrainedReply]]] = []
    twice = kept((case.launch(answer, times=2) for case in odd), again)
    once = kept((case.launch(answer) for case in cases), runs)
    yield EVERY, compare.first_failure(map(Training.learned, odd + cases, chain(twice, once)))
    yield "w unchanged", all_of(Training.untouched, odd + cases, again + runs)
    yield STAR, on_a_star(again + runs)
    yield MESSAGES, all_of(Training.frugal, cases, runs)
    yield "lead at most the bound", all_of(_not_too_early, cases, runs)
    yield "nobody within it waits", all_of(_not_too_late, cases, runs)
    yield "weights as they are", all_of(Training.fresh, cases, runs)


def _drawn(
    rng: Rng, milliseconds: list[int], steps: int, bound: float, dtype: torch.dtype = torch.float32
) -> Training:
    """milliseconds: of a gradient of each worker, at first; some take up to a third longer."""
    shape = rng.choice(((7,), (2, 4), (3, 1, 3)))
    seconds = [[each * MILLISECOND * rng.integer(10, 13) / 10 for _ in range(steps)] for each in milliseconds]
    lr = rng.integer(5, 20) / 100
    problem = Problem.drawn(rng, shape, seconds, dtype)
    return Training(problem, [steps, lr, bound], lr / problem.workers)


def _not_too_early(case: Training, run: Observed[list[TrainedReply]]) -> Finding:
    """Passes if no gradient begins before all workers have done what the bound asks for."""
    for worker, step, begun, _, allowed in _moments(case, run):
        if begun < allowed:
            text = f"worker {worker} begins step {step} at {1e3 * begun:.1f} ms"
            late = f"others have still to finish step {step - 1 - int(case.arguments[2])}, until"
            return Finding(False, f"{_told(case)}: {text}; {late} {1e3 * allowed:.1f} ms.")
    return Finding(True, f"{_told(case)}: nobody is further ahead.")


def _not_too_late(case: Training, run: Observed[list[TrainedReply]]) -> Finding:
    """Passes if each gradient begins as soon as it may and its worker is free, messages apart."""
    for worker, step, begun, free, allowed in _moments(case, run):
        if begun > max(free, allowed) + MILLISECOND:
            text = f"worker {worker} may begin step {step} at {1e3 * max(free, allowed):.1f} ms"
            return Finding(False, f"{_told(case)}: {text}, and begins at {1e3 * begun:.1f} ms.")
    return Finding(True, f"{_told(case)}: nobody waits who may go on.")


def _moments(case: Training, run: Observed[list[TrainedReply]]) -> list[tuple[int, int, float, float, float]]:
    """Of each gradient: worker, step, and when it begins, its worker is free, and the bound allows it."""
    spans = {worker: computing(run, worker, case.steps) for worker in range(1, case.workers + 1)}
    bound, found = case.arguments[2], []
    for worker, own in spans.items():
        for step, (begun, _) in enumerate(own):
            needed = step - 1 - bound
            allowed = max(each[int(needed)][1] for each in spans.values()) if needed >= 0 else 0.0
            found.append((worker, step, begun, own[step - 1][1] if step else 0.0, allowed))
    return found


def _told(case: Training) -> str:
    return f"{case}, bound {case.arguments[2]:g}"
