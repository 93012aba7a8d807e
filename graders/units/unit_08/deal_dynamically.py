"""The grader of `deal_dynamically`."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from course_lib.runtime.communication.events import Kind as EventKind
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    communication,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_08 import drivers
from graders.units.unit_08.drivers import DealtReply
from graders.units.unit_08.problems import star
from graders.units.unit_08.on_the_server import on_a_star

STAR, ONCE, FREE = "the star", "each batch once", "whoever is free"
SLACK = 1e-4
"""Seconds that a few messages may take; a batch takes at least ten times as long."""


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            ONCE,
            3,
            "Every number from 0 to batches - 1 is worked on by one worker. What does a worker get that asks "
            "when nothing is left? It must not wait for ever, and must not be given a batch.",
        ),
        Criterion(
            "who had which",
            1,
            "Rank 0 returns the worker of each batch, a worker the batches that it had, in order.",
        ),
        Criterion(
            FREE,
            3,
            "A worker that is done asks, and gets the next batch at once, in the order of their numbers: "
            "from whom does rank 0 receive?",
        ),
        Criterion(
            STAR, 1, "send and recv, and each message between a worker and rank 0.", needs=(ONCE, FREE)
        ),
        Criterion(
            "small messages",
            1,
            "A request and an answer a batch, and one more of each for every worker; a number is 8 bytes.",
            needs=(ONCE, FREE, STAR),
        ),
    ),
    hints=(
        "How does the master learn who is free first? dist.recv without a source takes whatever comes "
        "first, and returns whose it is.",
        "Which number says that nothing is left, and is no batch's? How many workers have to be told?",
    ),
)
def deal_dynamically(answer: Answer, rng: Rng) -> Findings:
    """Long and short batches, fast and slow workers; none, fewer than workers, more than a byte can count."""
    sizes = ((2, 0, 1), (1, 3, 1), (1, 258, 1), (4, 2, 5), (3, 12, 30), (3, rng.integer(10, 14), 5))
    worlds = [World.drawn(rng, *size) for size in sizes]
    runs: list[Observed[DealtReply]] = []

    def launched() -> Iterator[Observed[DealtReply]]:
        # After a failure nobody asks for the next, and it is not launched.
        for world in worlds:
            runs.append(world.launch(answer))
            yield runs[-1]

    yield (
        ONCE,
        compare.first_failure(map(World.complete, worlds, launched())),
    )
    yield "who had which", compare.first_failure(map(World.told, worlds, runs))
    yield FREE, compare.first_failure(map(World.prompt, worlds, runs))
    yield STAR, compare.first_failure(map(on_a_star, runs))
    yield "small messages", compare.first_failure(map(World.frugal, worlds, runs))


@dataclass(frozen=True, slots=True)
class World:
    """seconds[worker][batch]: what a batch takes a worker; worker 0 is rank 1."""

    seconds: list[list[float]]

    @classmethod
    def drawn(cls, rng: Rng, workers: int, batches: int, slowest: int) -> "World":
        """slowest: how many times as long as it would else one of the workers takes."""
        slowdowns = [rng.integer(10, 20) / 10 for _ in range(workers)]
        slowdowns[rng.integer(0, workers - 1)] *= slowest
        costs = [rng.integer(20, 40) * 1e-4 for _ in range(batches)]
        return cls([[cost * slow for cost in costs] for slow in slowdowns])

    @property
    def workers(self) -> int:
        return len(self.seconds)

    @property
    def batches(self) -> int:
        return len(self.seconds[0])

    def launch(self, answer: Answer) -> Observed[DealtReply]:
        ranks = self.workers + 1
        told = per_rank([[], *self.seconds])
        return answer.launch(drivers.dealt, self.batches, told, ranks=ranks, cluster=star(ranks))

    def complete(self, run: Observed[DealtReply]) -> Finding:
        """Passes if every batch was worked on exactly once."""
        had = defaultdict(list)
        for worker, reply in enumerate(run.results[1:], start=1):
            for batch in reply.worked:
                had[batch].append(worker)
        wrong = [batch for batch in range(self.batches) if len(had[batch]) != 1]
        if wrong:
            by = f"workers {had[wrong[0]]}" if had[wrong[0]] else "nobody"
            return Finding(False, f"{self}: batch {wrong[0]} went to {by}; expected one worker.")
        return Finding(True, f"{self}: each went to one worker.")

    def told(self, run: Observed[DealtReply]) -> Finding:
        """Passes if all ranks returned what happened."""
        batches = [reply.worked for reply in run.results[1:]]
        whose = {batch: worker for worker, had in enumerate(batches, start=1) for batch in had}
        expected = [[whose.get(batch) for batch in range(self.batches)], *batches]
        return compare.first_failure(
            compare.equal(reply.result, wanted, f"{self}: what rank {rank} returned")
            for rank, (reply, wanted) in enumerate(compare.side_by_side(run.results, expected))
        )

    def prompt(self, run: Observed[DealtReply]) -> Finding:
        """Passes if no worker waits between two batches, nor has ended while another one begins a batch."""
        work: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        for event in run.events:
            if event.kind is EventKind.SPAN and event.op == drivers.WORK:
                work[event.rank].append((event.start, event.end))
        last = max((start for spans in work.values() for start, _ in spans), default=0.0)
        for worker in range(1, self.workers + 1):
            spans = [(0.0, 0.0), *sorted(work[worker]), (last, last)]
            gaps = [max(0.0, following[0] - before[1]) for before, following in pairwise(spans)]
            if max(gaps) > SLACK:
                text = f"worker {worker} waits for {1e3 * max(gaps):.2f} ms while there are batches left"
                return Finding(False, f"{self}: {text}.")
        return self._in_order(run, work)

    def _in_order(self, run: Observed[DealtReply], work: dict[int, list[tuple[float, float]]]) -> Finding:
        """Passes if batches begin in the order of their numbers, messages apart."""
        begins = {
            batch: start
            for worker, spans in work.items()
            for batch, (start, _) in zip(run.results[worker].worked, sorted(spans), strict=False)
        }
        for batch in range(1, self.batches):
            if begins[batch] < begins[batch - 1] - SLACK:
                return Finding(False, f"{self}: batch {batch} begins before batch {batch - 1}.")
        return Finding(True, f"{self}: nobody waits as long as there are batches, which come in order.")

    def frugal(self, run: Observed[DealtReply]) -> Finding:
        """Passes if there is a number to and fro for each batch, and once more for each worker."""
        times = [len(reply.worked) + 1 for reply in run.results[1:]]
        counts = [self.batches + self.workers, *times]
        allowed = [communication.Allowance(count, 8 * count) for count in counts]
        return communication.traffic_within(run, allowed, str(self))

    def __str__(self) -> str:
        return f"{self.batches} batches on {compare.counted(self.workers, 'worker')}"
