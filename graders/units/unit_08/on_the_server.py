"""The trainings of unit 08 with a server: what they are given, and what its log says of them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from course_lib.runtime.communication.events import Kind as EventKind
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Observed,
    Rng,
    communication,
    compare,
    per_rank,
)
from graders.units.unit_08 import drivers
from graders.units.unit_08.drivers import TrainedReply
from graders.units.unit_08.problems import GRADIENT, TOLERANCES, Problem, star

SOON = 2e-3
"""Seconds that messages may take; a gradient takes five times as long."""

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
    def _within(self) -> tuple[float, float]:
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
            compare.close(reply.result, self._moved(call), "the server's weights", *self._within)
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

    def fresh(self) -> Finding:
        """Passes if every gradient was computed at the weights that the server had when it sent them."""
        weights = self.problem.w.clone()
        replies = [replies[0] for replies in self.run.results]
        pushed: Counter[int] = Counter()
        fetched: defaultdict[int, list[Tensor]] = defaultdict(list)
        for event in server_log(self.run, self.problem.w.nbytes):
            worker = event.peer
            if worker is None:
                continue
            if event.op == "send":
                fetched[worker].append(weights.clone())
                continue
            first = self.pace.push * pushed[worker]
            pushed[worker] += 1
            sent = replies[worker].given[first : first + self.pace.push]
            weights = weights - self.rate * sum(sent, torch.zeros_like(weights))
        return compare.first_failure(
            self._as_fetched(reply, fetched[worker], worker)
            for worker, reply in enumerate(replies[1:], start=1)
        )

    def in_order(self) -> Finding:
        """Passes if each worker fetches and sends in the order of its steps."""
        log = server_log(self.run, self.problem.w.nbytes)
        for worker in range(1, self.workers + 1):
            expected = [
                (what, step)
                for step in range(self.steps)
                for what, due in (
                    ("send", step % self.pace.fetch == 0),
                    ("recv", (step + 1) % self.pace.push == 0 or step + 1 == self.steps),
                )
                if due
            ]
            mine = [event for event in log if event.peer == worker]
            seen = [event.op for event in mine]
            if seen != [what for what, _ in expected]:
                said = ", ".join("fetches" if op == "send" else "pushes" for op in seen)
                return Finding(False, f"worker {worker} {said}; that is not the order of its steps.")
            spans = self.computing(worker)
            for event, (what, step) in zip(mine, expected, strict=True):
                if what == "send" and step and event.end < spans[step - 1][1]:
                    text = (
                        f"worker {worker} gets the weights for step {step} before it has done step {step - 1}"
                    )
                    return Finding(False, f"{text}.")
                if what == "recv" and step + 1 < self.steps and event.end > spans[step + 1][0] + SOON:
                    text = f"worker {worker} begins step {step + 1} before it sends what is due after {step}"
                    return Finding(False, f"{text}.")
        return Finding(True, "in the order of the steps.")

    def _as_fetched(self, reply: TrainedReply, fetched: list[Tensor], worker: int) -> Finding:
        """Passes if a worker's weights were these, and in between those with its own gradients taken off."""

        def each() -> Iterator[Finding]:
            for step, seen in enumerate(reply.seen):
                if step // self.pace.fetch >= len(fetched):
                    yield Finding(False, f"worker {worker} got no weights in step {step}.")
                since = step % self.pace.fetch
                own = sum(reply.given[step - since : step], torch.zeros_like(seen))
                wanted = fetched[step // self.pace.fetch] - self.lr * own
                what = f"the weights of worker {worker} in step {step}"
                yield compare.close(seen, wanted, what, *self._within)

        return compare.first_failure(each())

    def computing(self, worker: int) -> list[tuple[float, float]]:
        """When a worker's gradients begin and end, one by one. Raises AnswerFailed if they are too few."""
        spans = [
            (event.start, event.end)
            for event in self.run.events
            if event.rank == worker and event.kind is EventKind.SPAN and event.op == GRADIENT
        ]
        return [span for span, _ in compare.side_by_side(spans, range(self.steps))]


def server_log(run: Observed[list[TrainedReply]], nbytes: int) -> list[Event]:
    """Rank 0's messages of tensors of at least so many bytes, in the order in which they took effect."""

    def moment(event: Event) -> float:
        return event.start if event.op == "send" else event.end

    mine = (event for event in run.communication(0) if event.nbytes >= nbytes)
    return sorted(mine, key=moment)


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


# --- Rows


def asked(check: Callable[[Training], Finding]) -> Callable[[Tried[Pace]], Finding | None]:
    """Of the log of each training; of several in a row it is not judged."""
    return lambda tried: check(tried.seen) if tried.case.features.times == 1 else None


W_UNCHANGED = Criterion(
    "w unchanged",
    1,
    "The server's w is the caller's: train a copy.",
    how=lambda tried: tried.seen.untouched(),
)

STAR = Criterion(
    "the star",
    1,
    "send and recv, and each message between a worker and rank 0.",
    how=lambda tried: on_a_star(tried.seen.run),
)


def on_a_star(run: Observed[Any]) -> Finding:
    """Passes if all calls are messages, each with rank 0 at one end."""
    if not (only := communication.only_messages([run], "the answer")).passed:
        return only
    for event in run.events:
        if event.op == "send" and event.peer is not None and 0 not in (event.rank, event.peer):
            said = f"rank {event.rank} sends to rank {event.peer}, and neither is the server."
            return Finding(False, said)
    return Finding(True, "Every message comes from the server or goes to it.")
