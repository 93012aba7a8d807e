"""The grader of `deal_dynamically`."""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

from course_lib.runtime.communication.events import Kind as EventKind
from graders.grading.cases import both
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, communication, compare, per_rank
from graders.units.one_by_one import one_by_one
from graders.units.unit_08 import drivers
from graders.units.unit_08.on_the_server import STAR
from graders.units.unit_08.problems import star
from graders.units.unit_08.replies import DealtReply

ONCE, FREE = "each batch once", "whoever is free"
SLACK = 1e-4
"""Seconds that a few messages may take; a batch takes at least ten times as long."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """slowest: how many times as long as it would else one of the workers takes."""

    workers: int = feature(3, lambda workers: compare.counted(workers, "worker"))
    batches: int = feature(12, "{} batches")
    slowest: int = feature(5, lambda slowest: "one of them slow" if slowest > 1 else "")


@dataclass(frozen=True, slots=True)
class Dealt:
    """What the answer made of an epoch."""

    workers: int
    batches: int
    run: Observed[DealtReply]

    def complete(self) -> Finding:
        """Passes if every batch was worked on exactly once."""
        had = defaultdict(list)
        for worker, reply in enumerate(self.run.results[1:], start=1):
            for batch in reply.worked:
                had[batch].append(worker)
        wrong = [batch for batch in range(self.batches) if len(had[batch]) != 1]
        if wrong:
            by = f"workers {had[wrong[0]]}" if had[wrong[0]] else "nobody"
            return Finding(False, f"batch {wrong[0]} went to {by}; expected one worker.")
        return Finding(True, "each went to one worker.")

    def told(self) -> Finding:
        """Passes if all ranks returned what happened."""
        batches = [reply.worked for reply in self.run.results[1:]]
        whose = {batch: worker for worker, had in enumerate(batches, start=1) for batch in had}
        expected = [[whose.get(batch) for batch in range(self.batches)], *batches]
        return compare.first_failure(
            compare.equal(reply.result, wanted, f"what rank {rank} returned")
            for rank, (reply, wanted) in enumerate(compare.side_by_side(self.run.results, expected))
        )

    def prompt(self) -> Finding:
        """Passes if no worker waits between two batches, nor has ended while another one begins a batch."""
        work: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        for event in self.run.events:
            if event.kind is EventKind.SPAN and event.op == drivers.WORK:
                work[event.rank].append((event.start, event.end))
        last = max((start for spans in work.values() for start, _ in spans), default=0.0)
        for worker in range(1, self.workers + 1):
            spans = [(0.0, 0.0), *sorted(work[worker]), (last, last)]
            waits = max(following[0] - before[1] for before, following in pairwise(spans))
            if waits > SLACK:
                text = f"worker {worker} waits for {1e3 * waits:.2f} ms while there are batches left"
                return Finding(False, f"{text}.")
        return Finding(True, "nobody waits as long as there are batches.")

    def frugal(self) -> Finding:
        """Passes if there is a number to and fro for each batch, and once more for each worker."""
        times = [len(reply.worked) + 1 for reply in self.run.results[1:]]
        counts = [self.batches + self.workers, *times]
        allowed = [communication.Allowance(count, 8 * count) for count in counts]
        return communication.traffic_within(self.run, allowed, compare.counted(self.workers, "worker"))


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
            "who had which",
            1,
            "Rank 0 returns the worker of each batch, a worker the batches that it had, in order.",
            how=lambda tried: tried.seen.told(),
        ),
        Criterion(
            FREE,
            3,
            "A worker that is done asks, and gets the next batch at once: from whom does rank 0 receive?",
            how=lambda tried: tried.seen.prompt(),
        ),
        replace(STAR, needs=(ONCE, FREE)),
        Criterion(
            "small messages",
            1,
            "A request and an answer a batch, and one more of each for every worker; a number is 8 bytes.",
            needs=(ONCE, FREE, STAR.name),
            how=lambda tried: tried.seen.frugal(),
        ),
    ),
    hints=(
        "How does the master learn who is free first? dist.recv without a source takes whatever comes "
        "first, and returns whose it is.",
        "Which number says that nothing is left, and is no batch's? How many workers have to be told?",
    ),
)
def deal_dynamically(answer: Answer, epoch: Epoch, rng: Rng) -> tuple[Finding, Dealt]:
    """Long and short batches, fast and slow workers."""
    slowdowns = [rng.integer(10, 20) / 10 for _ in range(epoch.workers)]
    slowdowns[rng.integer(0, epoch.workers - 1)] *= epoch.slowest
    costs = [rng.integer(20, 40) * 1e-4 for _ in range(epoch.batches)]
    seconds = per_rank([[], *[[cost * slow for cost in costs] for slow in slowdowns]])
    ranks = epoch.workers + 1
    run = answer.launch(drivers.dealt, epoch.batches, seconds, ranks=ranks, cluster=star(ranks))
    dealt = Dealt(epoch.workers, epoch.batches, run)
    return dealt.complete(), dealt
