"""The grader of `checkpoint_interval`."""

import math
from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, of_function

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Job:
    """nodes: None where the call does not say it. short: failures come faster than a checkpoint is written,
    so that it shows if something is rounded.
    """

    nodes: int | None = feature(None, lambda nodes: f"{nodes} nodes" if nodes else "")
    short: bool = feature(False, lambda short: "a few seconds" if short else "days between failures")


def times_and_nodes(rng: Rng, job: Job) -> Arguments:
    """Seconds of a checkpoint, a node's mean time between failures, and the nodes."""
    times: Arguments = [rng.integer(5, 600) / 1.0, rng.integer(2, 900) * DAY]
    if job.short:
        times = [rng.integer(51, 59) / 10, rng.integer(201, 219) / 100 * (job.nodes or 1)]
    return times if job.nodes is None else [*times, job.nodes]


@of_function(
    base=Job(),
    minutes=8,
    difficulty=1,
    rubric=(
        Criterion(
            "one node",
            2,
            "Saving costs C / T of the time, failures T / 2M of it. Where is the sum least? Set its "
            "derivative by T to zero.",
            vary=vary(short=(True,)),
        ),
        Criterion(
            "many nodes",
            2,
            "With n nodes of which each fails every M seconds, the job fails every M / n seconds.",
            vary=vary(nodes=(2, 51, 2000)) + both(nodes=99, short=True),
        ),
    ),
    hints=(
        "For which T do the two losses change by equally much, in opposite directions?",
        "d/dT of C / T is -C / T^2, of T / 2M it is 1 / 2M.",
        "The job's mean time between failures is what belongs in the formula, not the node's.",
    ),
    arguments=times_and_nodes,
)
def checkpoint_interval(job: Job, given: Arguments) -> Expected:
    """Young (1974)."""
    seconds, mean_time, *_ = given
    interval = math.sqrt(2 * seconds * mean_time / (job.nodes or 1))
    return Expected(interval, {f"argument {place}": each for place, each in enumerate(given)}, returned=None)
