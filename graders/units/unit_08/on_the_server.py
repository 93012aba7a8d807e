"""The trainings of unit 08 with a server: what they are given, and what its log says of them."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Kind as EventKind
from graders.grading.judging import feature
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_08 import drivers
from graders.units.unit_08.problems import GRADIENT, TOLERANCES, Problem, star
from graders.units.unit_08.replies import TrainedReply

SMALL = 16
"""Bytes of a message that says what comes, or asks for something."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A training. milliseconds: of a gradient of each worker. uneven: some take up to a third longer.

    steps: of each worker. push, fetch: after how many it sends to the server, and gets weights.
    bound: how far ahead a worker may be. times: so often in a row, all from the same weights and batches.
    """

    milliseconds: tuple[int, ...] = feature((10, 13), lambda each: compare.counted(len(each), "worker"))
    steps: int = feature(4, lambda steps: compare.counted(steps, "step"))
    push: int = feature(1, lambda push: f"n_push {push}" if push > 1 else "")
    fetch: int = feature(1, lambda fetch: f"n_fetch {fetch}" if fetch > 1 else "")
    bound: float | None = feature(None, lambda bound: "" if bound is None else f"bound {bound:g}")
    shape: tuple[int, ...] = feature((7,), "weights of shape {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    uneven: bool = False
    times: int = feature(1, lambda times: "twice in a row" if times > 1 else "")


@dataclass(frozen=True, slots=True)
class Training:
    """A problem, and what the answer made of it.

    lr: the workers'. rate: what the server multiplies with whatever arrives.
    """

    pace: Pace
    problem: Problem
    lr: float
    rate: float
    run: Observed[list[TrainedReply]]

    @property
    def steps(self) -> int:
        return self.pace.steps

    @property
    def workers(self) -> int:
        return self.problem.workers

    @property
    def within(self) -> tuple[float, float]:
        return TOLERANCES[self.problem.w.dtype]

    def workers_done(self) -> Finding:
        """Passes if each worker has computed a gradient a step, and returned None."""
        for rank, replies in enumerate(self.run.results[1:], start=1):
            for reply, _ in compare.side_by_side(replies, self.run.results[0]):
                if len(reply.given) != self.steps:
                    text = f"worker {rank} computed {compare.counted(len(reply.given), 'gradient')}"
                    return Finding(False, f"{text}; expected {self.steps}.")
                if reply.result is not None:
                    seen = compare.shown(reply.result)
                    return Finding(False, f"worker {rank} returned {seen}; expected None.")
        return Finding(True, "every worker has computed a gradient a step.")

    def learned(self) -> Finding:
        """Passes if the server's weights have moved by every gradient once, and workers returned None."""
        right = (
            compare.close(reply.result, self._moved(call), "the server's weights", *self.within)
            for call, reply in enumerate(self.run.results[0])
        )
        return compare.first_failure([self.workers_done(), *right])

    def _moved(self, call: int) -> Tensor:
        given = [gradient for replies in self.run.results[1:] for gradient in replies[call].given]
        return self.problem.w - self.rate * sum(given, torch.zeros_like(self.problem.w))

    def untouched(self) -> Finding:
        """Passes if the server's argument is as it was."""
        return compare.first_failure(
            compare.close(reply.w, self.problem.w, "the server's w afterwards", 0, 0)
            for reply in self.run.results[0]
        )

    def frugal(self) -> Finding:
        """Passes if each worker sends and gets tensors of w's size as often as it must, and little else."""
        nbytes = self.problem.w.nbytes
        tensors: Counter[tuple[int, int]] = Counter()
        small: Counter[tuple[int, int]] = Counter()
        for event in self.run.events:
            if event.op == "send" and event.peer is not None:
                way = (event.rank, event.peer)
                (tensors if event.nbytes > SMALL else small)[way] += 1
                if event.nbytes > nbytes + SMALL:
                    return Finding(False, f"rank {event.rank} sends {event.nbytes:,} bytes at once.")
        pushes, fetches = -(-self.steps // self.pace.push), -(-self.steps // self.pace.fetch)
        for worker in range(1, self.workers + 1):
            for way, wanted, what in (((worker, 0), pushes, "gradients"), ((0, worker), fetches, "weights")):
                if tensors[way] != wanted:
                    text = f"rank {way[0]} sends rank {way[1]} {what} {tensors[way]} times"
                    return Finding(False, f"{text}; expected {wanted}.")
            others = small[worker, 0] + small[0, worker]
            if others > pushes + fetches + 1:
                text = f"rank 0 and rank {worker} send {others} messages of at most {SMALL} bytes"
                return Finding(False, f"{text}; allowed are {pushes + fetches + 1}.")
        return Finding(True, "nothing is sent that need not be.")

    def computing(self, worker: int) -> list[tuple[float, float]]:
        """When a worker's gradients begin and end, one by one. Raises AnswerFailed if they are too few."""
        spans = [
            (event.start, event.end)
            for event in self.run.events
            if event.rank == worker and event.kind is EventKind.SPAN and event.op == GRADIENT
        ]
        return [span for span, _ in compare.side_by_side(spans, range(self.steps))]


def train(answer: Answer, pace: Pace, rng: Rng, arguments: list[float], mean: bool) -> Training:
    """The answer's training. arguments: after the learning rate. mean: the server divides by the workers."""
    lr, steps = rng.integer(5, 20) / 100, pace.steps
    longer = [
        [rng.integer(10, 13) / 10 if pace.uneven else 1 for _ in range(steps)] for _ in pace.milliseconds
    ]
    seconds = [
        [each * 1e-3 * factor for factor in factors]
        for each, factors in zip(pace.milliseconds, longer, strict=True)
    ]
    problem = Problem.drawn(rng, pace.shape, seconds, pace.dtype)
    ranks, given = problem.workers + 1, [steps, lr, *arguments]
    told = [[(problem.weights_of(rank), problem.batches[rank], given)] * pace.times for rank in range(ranks)]
    run = answer.launch(drivers.trained, per_rank(told), ranks=ranks, cluster=star(ranks))
    return Training(pace, problem, lr, lr / problem.workers if mean else lr, run)
