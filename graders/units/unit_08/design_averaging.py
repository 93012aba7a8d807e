"""The grader of `design_averaging`."""

import math

from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, compare, exercise
from graders.units.unit_08.averaging_cases import SHAPES, Case
from graders.units.unit_08.problems import GRADIENT
from graders.units.unit_08.replies import DesignReply

REACHES = "reaches the loss"
HALF, ONE_HALF, THIRD = (
    "half of what can be saved",
    "at most half as long again as the best known",
    "at most a third longer than the best known",
)


@exercise(
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(REACHES, 2, "No rank gets there on its own: its node has data of one kind."),
        Criterion(HALF, 2, "What do the ranks wait for here: for messages, or for one of them?"),
        Criterion(
            ONE_HALF,
            2,
            "How long do ranks train alone, if messages take four times as long as a gradient? And must a "
            "slow rank make as many steps as the others?",
            needs=(REACHES, HALF),
        ),
        Criterion(
            THIRD,
            2,
            "Reckon the seconds of a round, gradients and messages; and let a long latency be waited for by "
            "as few messages in a row as you can.",
            needs=(REACHES, ONE_HALF),
        ),
    ),
    hints=(
        "Which scheme of this unit sends least often? What does it lose, and from which period on?",
        "A round takes as long as its slowest rank. What if the period is one of time, not of steps?",
        "With GPUs of one node close together, what need to wait for the network between nodes?",
    ),
)
def design_averaging(answer: Answer, rng: Rng) -> Findings:
    """Clusters where messages are cheap, or dear, with and without a slow rank."""
    cases = [Case.drawn(rng, *shape) for shape in SHAPES]
    runs = [case.launch(answer) for case in cases]
    found = [reached(case, run) for case, run in zip(cases, runs, strict=True)]
    yield REACHES, compare.first_failure(each for _, each in found)
    limits = {
        HALF: [max((case.plain + case.best) / 2, 1.25 * case.best) for case in cases],
        ONE_HALF: [1.5 * case.best for case in cases],
        THIRD: [4 / 3 * case.best for case in cases],
    }
    for name, allowed in limits.items():
        judged = zip(cases, runs, found, allowed, strict=True)
        yield (
            name,
            compare.first_failure(within(case, run, at, limit) for case, run, (at, _), limit in judged),
        )


def reached(case: Case, run: Observed[DesignReply]) -> tuple[float, Finding]:
    """When a gradient was first asked for at weights with the loss that is asked for; inf if never."""
    at, least = math.inf, math.inf
    for rank, reply in enumerate(run.results):
        asked = sorted(
            (event for event in run.events if event.rank == rank and event.op == GRADIENT),
            key=lambda event: event.sequence,
        )
        if reply.seen.shape != (len(asked), *case.w.shape):
            said = f"{case}: rank {rank} has {len(asked)} spans {GRADIENT!r}, and not one for each gradient"
            return math.inf, Finding(False, f"{said}: leave them to the grader.")
        losses = case.loss(reply.seen).tolist()
        least = min(least, *(each for each in losses if each == each), math.inf)
        low = zip(asked, losses, strict=True)
        at = min(at, *(event.start for event, loss in low if loss <= case.target), math.inf)
    if at < math.inf:
        return at, Finding(True, f"{case}: the loss of {case.target:.3f} is reached.")
    return at, Finding(
        False,
        f"{case}: the lowest loss at which a gradient is asked for is {least:.3f}; expected "
        f"{case.target:.3f} or less.",
    )


def within(case: Case, run: Observed[DesignReply], at: float, allowed: float) -> Finding:
    """Passes if the loss was reached in time."""
    sent = sum(event.sent for event in run.events if event.end <= at)
    took, limit, plain, best = (f"{1e3 * each:.1f} ms" for each in (at, allowed, case.plain, case.best))
    return Finding(
        at <= allowed,
        f"{case}: the loss is reached after {took}, with {sent:,} bytes sent; {limit} are allowed here "
        f"(the mean of all gradients in each step {plain}, the best known {best}).",
    )
