"""Unit 08, what a server's log says: which weights went to whom, and what they had learned by then."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from course_lib.runtime.communication.events import Kind as EventKind
from graders.grading.kit import Answer, Finding, Observed, compare, per_rank
from graders.units.unit_08 import drivers
from graders.units.unit_08.drivers import TrainedReply
from graders.units.unit_08.problems import GRADIENT, TOLERANCES, Problem, star

SOON = 2e-3
"""Seconds that messages may take; a gradient takes five times as long."""

SMALL = 16
"""Bytes of a message that says what comes, or asks for something."""


@dataclass(frozen=True, slots=True)
class Training:
    """A problem, the answer's other arguments, and how often each worker sends to the server and fetches.

    rate: what the server multiplies with whatever arrives. push, fetch: each so many steps.
    """

    problem: Problem
    arguments: list[float]
    rate: float
    push: int = 1
    fetch: int = 1

    @property
    def steps(self) -> int:
        return len(self.problem.batches[1])

    @property
    def workers(self) -> int:
        return self.problem.workers

    @property
    def _within(self) -> tuple[float, float]:
        return TOLERANCES[self.problem.w.dtype]

    def launch(self, answer: Answer, times: int = 1) -> Observed[list[TrainedReply]]:
        """The answer's training, once or several times in a row, all from the same weights and batches."""
        problem, ranks = self.problem, self.workers + 1
        told = [
            [(problem.weights_of(rank), problem.batches[rank], self.arguments)] * times
            for rank in range(ranks)
        ]
        return answer.launch(drivers.trained, per_rank(told), ranks=ranks, cluster=star(ranks))

    def learned(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if the server's weights have moved by every gradient once, and workers returned None."""
        for rank, replies in enumerate(run.results[1:], start=1):
            for reply, _ in compare.side_by_side(replies, run.results[0]):
                if reply.result is not None:
                    seen = compare.shown(reply.result)
                    return Finding(False, f"{self}: worker {rank} returned {seen}; expected None.")
                if len(reply.given) != self.steps:
                    text = f"worker {rank} computed {compare.counted(len(reply.given), 'gradient')}"
                    return Finding(False, f"{self}: {text}; expected {self.steps}.")
        return compare.first_failure(
            compare.close(
                reply.result, self._moved(run, call), f"{self}: the server's weights", *self._within
            )
            for call, reply in enumerate(run.results[0])
        )

    def _moved(self, run: Observed[list[TrainedReply]], call: int) -> Tensor:
        given = [gradient for replies in run.results[1:] for gradient in replies[call].given]
        return self.problem.w - self.rate * sum(given, torch.zeros_like(self.problem.w))

    def untouched(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if the server's argument is as it was."""
        return compare.first_failure(
            compare.close(reply.w, self.problem.w, "the server's w afterwards", 0, 0)
            for reply in run.results[0]
        )

    def frugal(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if each worker sends and gets tensors of w's size as often as it must, and little else."""
        nbytes = self.problem.w.nbytes
        tensors: Counter[tuple[int, int]] = Counter()
        small: Counter[tuple[int, int]] = Counter()
        for event in run.events:
            if event.op == "send" and event.peer is not None:
                way = (event.rank, event.peer)
                (tensors if event.nbytes > SMALL else small)[way] += 1
                if event.nbytes > nbytes + SMALL:
                    return Finding(False, f"{self}: rank {event.rank} sends {event.nbytes:,} bytes at once.")
        pushes, fetches = -(-self.steps // self.push), -(-self.steps // self.fetch)
        for worker in range(1, self.workers + 1):
            for way, wanted, what in (((worker, 0), pushes, "gradients"), ((0, worker), fetches, "weights")):
                if tensors[way] != wanted:
                    text = f"rank {way[0]} sends rank {way[1]} {what} {tensors[way]} times"
                    return Finding(False, f"{self}: {text}; expected {wanted}.")
            others = small[worker, 0] + small[0, worker]
            if others > pushes + fetches + 1:
                text = f"rank 0 and rank {worker} send {others} messages of at most {SMALL} bytes"
                return Finding(False, f"{self}: {text}; allowed are {pushes + fetches + 1}.")
        return Finding(True, f"{self}: nothing is sent that need not be.")

    def fresh(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if every gradient was computed at the weights that the server had when it sent them."""
        weights = self.problem.w.clone()
        replies = [replies[0] for replies in run.results]
        pushed: Counter[int] = Counter()
        fetched: defaultdict[int, list[Tensor]] = defaultdict(list)
        for event in server_log(run, self.problem.w.nbytes):
            worker = event.peer
            if worker is None:
                continue
            if event.op == "send":
                fetched[worker].append(weights.clone())
                continue
            first = self.push * pushed[worker]
            pushed[worker] += 1
            sent = replies[worker].given[first : first + self.push]
            weights = weights - self.rate * sum(sent, torch.zeros_like(weights))
        return compare.first_failure(
            self._as_fetched(reply, fetched[worker], worker)
            for worker, reply in enumerate(replies[1:], start=1)
        )

    def in_order(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if each worker fetches and sends in the order of its steps."""
        log = server_log(run, self.problem.w.nbytes)
        for worker in range(1, self.workers + 1):
            expected = [
                (what, step)
                for step in range(self.steps)
                for what, due in (
                    ("send", step % self.fetch == 0),
                    ("recv", (step + 1) % self.push == 0 or step + 1 == self.steps),
                )
                if due
            ]
            mine = [event for event in log if event.peer == worker]
            seen = [event.op for event in mine]
            if seen != [what for what, _ in expected]:
                said = ", ".join("fetches" if op == "send" else "pushes" for op in seen)
                return Finding(False, f"{self}: worker {worker} {said}; that is not the order of its steps.")
            spans = computing(run, worker, self.steps)
            for event, (what, step) in zip(mine, expected, strict=True):
                if what == "send" and step and event.end < spans[step - 1][1]:
                    text = (
                        f"worker {worker} gets the weights for step {step} before it has done step {step - 1}"
                    )
                    return Finding(False, f"{self}: {text}.")
                if what == "recv" and step + 1 < self.steps and event.end > spans[step + 1][0] + SOON:
                    text = f"worker {worker} begins step {step + 1} before it sends what is due after {step}"
                    return Finding(False, f"{self}: {text}.")
        return Finding(True, f"{self}: in the order of the steps.")

    def _as_fetched(self, reply: TrainedReply, fetched: list[Tensor], worker: int) -> Finding:
        """Passes if a worker's weights were these, and in between those with its own gradients taken off."""

        def each() -> Iterator[Finding]:
            for step, seen in enumerate(reply.seen):
                if step // self.fetch >= len(fetched):
                    yield Finding(False, f"{self}: worker {worker} got no weights in step {step}.")
                since = step % self.fetch
                own = sum(reply.given[step - since : step], torch.zeros_like(seen))
                wanted = fetched[step // self.fetch] - self.arguments[1] * own
                what = f"{self}: the weights of worker {worker} in step {step}"
                yield compare.close(seen, wanted, what, *self._within)

        return compare.first_failure(each())

    def __str__(self) -> str:
        return f"with {compare.counted(self.workers, 'worker')} and {compare.counted(self.steps, 'step')}"


def server_log(run: Observed[list[TrainedReply]], nbytes: int) -> list[Event]:
    """Rank 0's messages of tensors of at least so many bytes, in the order in which they took effect."""

    def moment(event: Event) -> float:
        return event.start if event.op == "send" else event.end

    mine = (event for event in run.communication(0) if event.nbytes >= nbytes)
    return sorted(mine, key=moment)


def computing(run: Observed[list[TrainedReply]], worker: int, steps: int) -> list[tuple[float, float]]:
    """When a worker's gradients begin and end, one by one. Raises AnswerFailed if there are not `steps`."""
    spans = [
        (event.start, event.end)
        for event in run.events
        if event.rank == worker and event.kind is EventKind.SPAN and event.op == GRADIENT
    ]
    return [span for span, _ in compare.side_by_side(spans, range(steps))]


def all_of(
    check: Callable[[Training, Observed[list[TrainedReply]]], Finding],
    cases: list[Training],
    runs: list[Observed[list[TrainedReply]]],
) -> Finding:
    """The first case that does not pass."""
    return compare.first_failure(map(check, cases, runs))
