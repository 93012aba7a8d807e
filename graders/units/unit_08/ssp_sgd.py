"""The grader of `ssp_sgd`."""

import math

from course_lib.runtime.communication.events import Kind as EventKind
from graders.grading.cases import both
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_08.on_the_server import EVERY, NEEDED, SHARED, SOON, Pace, Training, asked, train
from graders.units.unit_08.problems import GRADIENT


def moments(training: Training) -> list[tuple[int, int, float, float, float]]:
    """Of each gradient: worker, step, and when it begins, its worker is free, and the bound allows it."""
    events = [event for event in training.run.events if event.kind is EventKind.SPAN and event.op == GRADIENT]
    spans = {}
    for worker in training.workers:
        own = [(event.start, event.end) for event in events if event.rank == worker]
        spans[worker] = [span for span, _ in compare.side_by_side(own, range(training.pace.steps))]
    bound, found = training.pace.bound or 0, []
    for worker, own in spans.items():
        for step, (begun, _) in enumerate(own):
            needed = step - 1 - bound
            allowed = max(each[int(needed)][1] for each in spans.values()) if needed >= 0 else 0.0
            found.append((worker, step, begun, own[step - 1][1] if step else 0.0, allowed))
    return found


def not_too_early(training: Training) -> Finding:
    """Passes if no gradient begins before all workers have done what the bound asks for."""
    for worker, step, begun, _, allowed in moments(training):
        if begun < allowed:
            text = f"worker {worker} begins step {step} at {1e3 * begun:.1f} ms"
            return Finding(False, f"{text}; the slowest is near enough at {1e3 * allowed:.1f} ms.")
    return Finding(True, "nobody is further ahead.")


def not_too_late(training: Training) -> Finding:
    """Passes if each gradient begins as soon as it may and its worker is free, messages apart."""
    for worker, step, begun, free, allowed in moments(training):
        if begun > max(free, allowed) + SOON:
            text = f"worker {worker} may begin step {step} at {1e3 * max(free, allowed):.1f} ms"
            return Finding(False, f"{text}, and begins at {1e3 * begun:.1f} ms.")
    return Finding(True, "nobody waits who may go on.")


@one_by_one(
    base=Pace(milliseconds=(70, 10, 18, 25), steps=6, bound=2),
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            EVERY,
            2,
            "The server's weights move by -lr / K times each gradient, with K workers. Workers return None.",
            vary=both(milliseconds=(10, 25, 13), steps=4, bound=0)
            + both(milliseconds=(10, 33), steps=5, bound=math.inf)
            + both(milliseconds=(10, 13, 47), bound=1)
            + both(milliseconds=(10,), steps=3, bound=0),
        ),
        *SHARED,
        Criterion(
            "lead at most the bound",
            2,
            "A worker that is too far ahead gets its weights later: who is waiting, and whose gradient ends "
            "the wait?",
            needs=NEEDED,
            how=asked(not_too_early),
        ),
        Criterion(
            "nobody within it waits",
            2,
            "After each gradient: which of those who wait may go on now?",
            needs=NEEDED,
            how=asked(not_too_late),
        ),
        Criterion(
            "weights as they are",
            1,
            "A worker gets the weights as they are when it goes on, not when it asked.",
            needs=("messages and bytes",),
            how=asked(Training.fresh),
        ),
    ),
    hints=(
        "Which workers wait for the server's answer at a moment? Keep them in a list.",
        "BoundedClock counts from 0, ranks of workers from 1.",
        "Receive a gradient, step, tick; then send the weights to all those waiting who may go on.",
    ),
)
def ssp_sgd(answer: Answer, pace: Pace, rng: Rng) -> tuple[Finding, Training]:
    """Uneven workers, whose pace also changes, under several bounds."""
    training = train(answer, pace, rng, [pace.bound or 0], mean=True)
    return training.learned(), training
