"""The grader of `ssp_sgd`."""

import math
from itertools import chain

import torch

from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, compare, exercise
from graders.units.unit_08.drivers import TrainedReply
from graders.units.unit_08.on_the_server import Training, all_of, computing
from graders.units.unit_08.problems import Problem
from graders.units.unit_08.synchronous import STAR, kept, on_a_star

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
