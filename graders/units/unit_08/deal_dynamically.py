"""The grader of `deal_dynamically`."""

from dataclasses import dataclass, replace
from itertools import chain, pairwise

from course_lib.runtime.communication.events import Kind as EventKind
from graders.grading.cases import both
from graders.grading.communication import Allowance, traffic_within
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, PlainData, Rng, compare, per_rank
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_08 import drivers
from graders.units.unit_08.on_the_server import STAR, on_a_star
from graders.units.unit_08.problems import star

ONCE, TOLD, FREE, SMALL = "each batch once", "who had which", "whoever is free", "small messages"
SLACK = 1e-4
"""Seconds that a few messages may take; a batch takes at least ten times as long."""

Run = Observed[tuple[PlainData, list[int]]]


@dataclass(frozen=True, slots=True)
class Epoch:
    """slowest: how many times as long as it would else one of the workers takes."""

    workers: int = feature(3, lambda workers: compare.counted(workers, "worker"))
    batches: int = feature(12, "{} batches")
    slowest: int = feature(5, lambda slowest: "one of them slow" if slowest > 1 else "")


def prompt(run: Run) -> Finding:
    """Passes if no worker waits between two batches, nor has ended while another one begins a batch."""
    work = [each for each in run.events if each.kind is EventKind.SPAN and each.op == drivers.WORK]
    last = max((each.start for each in work), default=0.0)
    for worker in range(1, len(run.results)):
        own = sorted((each.start, each.end) for each in work if each.rank == worker)
        waits = max(begin - end for (_, end), (begin, _) in pairwise([(0.0, 0.0), *own, (last, last)]))
        if waits > SLACK:
            said = f"worker {worker} waits for {1e3 * waits:.2f} ms while there are batches left."
            return Finding(False, said)
    return Finding(True, "nobody waits as long as there are batches.")


@one_by_one(
    base=Epoch(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            ONCE,
            3,
            "Every number from 0 to batches - 1 is worked on by one worker. What does a worker get that asks "
            "when nothing is left? It must not wait for ever, and must not be given a batch.",
            vary=both(workers=2, batches=0, slowest=1) + both(workers=4, batches=2) + both(slowest=30),
        ),
        Criterion(
            TOLD, 1, "Whom did rank 0 send each batch? A worker returns its own, in order.", how=look(TOLD)
        ),
        Criterion(FREE, 3, "Who is done asks, and gets one at once. From whom is a request?", how=look(FREE)),
        replace(STAR, needs=(ONCE, FREE), how=look(STAR.name)),
        Criterion(
            SMALL,
            1,
            "A request and an answer a batch, and one more of each for every worker; a number is 8 bytes.",
            needs=(ONCE, FREE, STAR.name),
            how=look(SMALL),
        ),
    ),
    hints=(
        "How does the master learn who is free first? dist.recv without a source takes whatever comes "
        "first, and returns whose it is.",
        "Which number says that nothing is left, and is no batch's? How many workers have to be told?",
    ),
)
def deal_dynamically(answer: Answer, epoch: Epoch, rng: Rng) -> tuple[Finding, Looks]:
    """Long and short batches, fast and slow workers."""
    slowdowns = [rng.integer(10, 20) / 10 for _ in range(epoch.workers)]
    slowdowns[rng.integer(0, epoch.workers - 1)] *= epoch.slowest
    costs = [rng.integer(20, 40) * 1e-4 for _ in range(epoch.batches)]
    seconds = per_rank([[], *[[cost * slow for cost in costs] for slow in slowdowns]])
    ranks = epoch.workers + 1
    run = answer.launch(drivers.dealt, epoch.batches, seconds, ranks=ranks, cluster=star(ranks))
    returned, worked = zip(*run.results, strict=True)
    had = {worker: sorted(worked[worker]) for worker in range(1, ranks)}
    once = compare.equal(sorted(chain(*worked)), [*range(epoch.batches)], f"of batches, by worker, {had}")
    whose = {batch: worker for worker, own in enumerate(worked) for batch in own}
    due = [[whose.get(batch) for batch in range(epoch.batches)], *worked[1:]]
    times = [epoch.batches + epoch.workers, *(len(own) + 1 for own in worked[1:])]
    allowed = [Allowance(count, 8 * count) for count in times]
    return once, {
        TOLD: lambda: compare.equal(list(returned), due, "what the ranks returned"),
        FREE: lambda: prompt(run),
        STAR.name: lambda: on_a_star(run),
        SMALL: lambda: traffic_within(run, allowed, compare.counted(epoch.workers, "worker")),
    }
