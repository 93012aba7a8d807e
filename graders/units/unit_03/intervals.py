"""Unit 03, how often to save."""

import math
from collections.abc import Sequence

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call


@exercise(
    minutes=8,
    difficulty=1,
    rubric=(
        Criterion(
            "one node",
            2,
            "Saving costs C / T of the time, failures T / 2M of it. Where is the sum least? Set its "
            "derivative by T to zero.",
        ),
        Criterion(
            "many nodes",
            2,
            "With n nodes of which each fails every M seconds, the job fails every M / n seconds.",
        ),
    ),
    hints=(
        "For which T do the two losses change by equally much, in opposite directions?",
        "d/dT of C / T is -C / T^2, of T / 2M it is 1 / 2M.",
        "The job's mean time between failures is what belongs in the formula, not the node's.",
    ),
)
def checkpoint_interval(answer: Answer, rng: Rng) -> Findings:
    """Young's interval, for one node and for many."""
    day = 86_400.0
    cases = [(rng.integer(5, 600) / 1.0, rng.integer(2, 900) * day) for _ in range(3)]
    # So short that it shows if something is rounded, and shorter than a checkpoint: that changes nothing.
    short = rng.integer(51, 59) / 10, rng.integer(201, 219) / 100
    yield "one node", intervals(answer, [*cases, short])
    nodes = rng.integer(51, 99)
    many = [(*case, rng.integer(2, 2000)) for case in cases]
    yield "many nodes", intervals(answer, [*many, (short[0], short[1] * nodes, nodes)])


def intervals(answer: Answer, cases: Sequence[tuple[float, ...]]) -> Finding:
    """Passes if every interval is Young's, for (seconds of a checkpoint, a node's mean time[, nodes])."""

    def one(seconds: float, mean_time: float, nodes: float = 1) -> Finding:
        given = (seconds, mean_time, nodes)[: len(cases[0])]
        machine = f" on each of {nodes} nodes" if len(given) == 3 else ""
        what = f"the interval for checkpoints of {seconds:g} s and a failure every {mean_time:g} s{machine}"
        expected = math.sqrt(2 * seconds * mean_time / nodes)
        seen = answer.call(call, *given)
        finding = compare.near(seen, expected, what, unit=" s")
        shown = [f"{number:,.1f}" for number in (compare.as_float(seen), expected)]
        if finding.passed or shown[0] == shown[1] or type(seen) is not float:
            return finding
        return Finding(False, f"{what} is {shown[0]} s; expected {shown[1]} s.")

    return compare.first_failure(one(*case) for case in cases)
