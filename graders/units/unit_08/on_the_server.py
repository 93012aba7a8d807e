"""The trainings of unit 08 with a server: what they are given, what is found of them, and shared rows."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.communication import Allowance, only_messages, traffic_within
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_08 import drivers
from graders.units.unit_08.problems import Batches, TrainedReply, star

SHAPE = (5, 8)
SMALL = 16
"""Bytes of a message that says what comes, or asks for something."""
SOON = 2e-3
"""Seconds that messages may take; a gradient takes five times as long."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A training. milliseconds: of a gradient of each worker; of every second one a quarter more.

    steps: of each worker. push, fetch: after how many it sends to the server, and gets weights.
    bound: how far ahead a worker may be.
    """

    milliseconds: tuple[int, ...] = feature((10, 13), lambda each: compare.counted(len(each), "worker"))
    steps: int = feature(4, lambda steps: compare.counted(steps, "step"))
    push: int = feature(1, lambda push: f"n_push {push}" if push > 1 else "")
    fetch: int = feature(1, lambda fetch: f"n_fetch {fetch}" if fetch > 1 else "")
    bound: float | None = feature(None, lambda bound: "" if bound is None else f"bound {bound:g}")


@dataclass(frozen=True, slots=True)
class Training:
    """What was drawn, and what the answer made of it.

    w: SHAPE, to begin with. batches: of each rank; the server, rank 0, has none. lr: the workers'. rate: what
    the server multiplies with whatever arrives.
    """

    pace: Pace
    w: Tensor
    batches: list[Batches]
    lr: float
    rate: float
    run: Observed[TrainedReply]

    @property
    def workers(self) -> range:
        return range(1, len(self.batches))

    def workers_done(self) -> Finding:
        """Passes if each worker has computed a gradient a step, and returned None."""
        for rank, reply in enumerate(self.run.results[1:], start=1):
            if any(each.shape != self.w.shape for each in (*reply.given, *reply.seen)):
                return Finding(False, f"worker {rank} tells of gradients or weights of another shape.")
            if len(reply.given) != self.pace.steps or reply.result is not None:
                said = f"worker {rank} computed {compare.counted(len(reply.given), 'gradient')} and returned "
                said += f"{compare.shown(reply.result)}; expected {self.pace.steps} and None."
                return Finding(False, said)
        return Finding(True, "every worker has computed a gradient a step.")

    def learned(self) -> Finding:
        """Passes if the server's weights have moved by every gradient once, and workers returned None."""
        if not (done := self.workers_done()).passed:
            return done
        wanted = self.w - self.rate * sum(sum(reply.given) for reply in self.run.results[1:])
        return compare.close(self.run.results[0].result, wanted, "the server's weights", 1e-4, 1e-5)

    def frugal(self, short: bool = True) -> Finding:
        """Passes if each worker sends and gets tensors of w's size as often as it must, and little else.

        short: whether a few short messages may go with them.
        """
        pushes, fetches = -(-self.pace.steps // self.pace.push), -(-self.pace.steps // self.pace.fetch)
        count, more, nbytes = len(self.workers), (pushes + fetches + 1) * short, self.w.nbytes
        server = Allowance(count * (fetches + more), count * (fetches * nbytes + more * SMALL))
        worker = Allowance(pushes + more, pushes * nbytes + more * SMALL)
        return traffic_within(self.run, [server, *[worker] * count], compare.counted(count, "worker"))

    def untouched(self) -> Finding:
        """Passes if the server's argument is as it was."""
        return compare.close(self.run.results[0].w, self.w, "the server's w afterwards", 0, 0)

    def fresh(self) -> Finding:
        """Passes if every gradient was computed at the weights that the server had when it sent them, and in
        between at those with the worker's own gradients taken off.
        """
        weights, replies = self.w, self.run.results
        pushed: Counter[int] = Counter()
        fetched: defaultdict[int, list[Tensor]] = defaultdict(list)
        # Tensors, in the order in which they took effect.
        log = [event for event in self.run.communication(0) if event.nbytes >= self.w.nbytes]
        for event in sorted(log, key=lambda event: event.start if event.op == "send" else event.end):
            worker = event.peer or 0
            if event.op == "send":
                fetched[worker].append(weights)
            else:
                first = self.pace.push * pushed[worker]
                pushed[worker] += 1
                weights = weights - self.rate * sum(replies[worker].given[first : first + self.pace.push])
        found = [Finding(True, "gradients are of the server's weights as they were.")]
        for worker in self.workers:
            for step, seen in enumerate(replies[worker].seen):
                number, since = divmod(step, self.pace.fetch)
                if number >= len(fetched[worker]):
                    return Finding(False, f"worker {worker} got no weights in step {step}.")
                own = sum(replies[worker].given[step - since : step])
                wanted = fetched[worker][number] - self.lr * own
                what = f"the weights of worker {worker} in step {step}"
                found.append(compare.close(seen, wanted, what, 1e-4, 1e-5))
        return compare.first_failure(found)


def train(answer: Answer, pace: Pace, rng: Rng, arguments: list[float], mean: bool) -> Training:
    """The answer's training. arguments: after the learning rate. mean: the server divides by the workers."""
    lr, w = rng.integer(5, 20) / 100, 3 * rng.normal(*SHAPE)
    size, batches = w.numel(), list[Batches]([[]])
    for each in pace.milliseconds:
        own: Batches = []
        for step in range(pace.steps):
            slope, turn, offset = rng.normal(size).abs(), rng.normal(size, size), rng.normal(size)
            seconds = each * 1e-3 * (1 + step % 2 / 4)
            own.append({"slope": 1 + slope, "turn": turn / size, "offset": 2 * offset, "seconds": seconds})
        batches.append(own)
    # What workers get in w means nothing.
    weights = [w, *[torch.full_like(w, torch.nan)] * len(pace.milliseconds)]
    given = per_rank(weights), per_rank(batches), [pace.steps, lr, *arguments]
    run = answer.launch(drivers.trained, *given, ranks=len(batches), cluster=star(len(batches)))
    rate = lr / len(pace.milliseconds) if mean else lr
    return Training(pace, w, batches, lr, rate, run)


def asked(check: Callable[[Training], Finding]) -> Callable[[Tried[Pace]], Finding]:
    """Of each training that came out right."""
    return lambda tried: check(tried.seen)


def on_a_star(run: Observed[Any]) -> Finding:
    """Passes if all calls are messages, each with rank 0 at one end."""
    if not (only := only_messages([run], "the answer")).passed:
        return only
    for event in run.events:
        if event.op == "send" and event.peer is not None and 0 not in (event.rank, event.peer):
            said = f"rank {event.rank} sends to rank {event.peer}, and neither is the server."
            return Finding(False, said)
    return Finding(True, "Every message comes from the server or goes to it.")


W_UNCHANGED = Criterion(
    "w unchanged", 1, "The server's w is the caller's: train a copy.", how=asked(Training.untouched)
)
STAR = Criterion(
    "the star",
    1,
    "send and recv, and each message between a worker and rank 0.",
    how=lambda tried: on_a_star(tried.seen.run),
)
EVERY = "every gradient once"
NEEDED = (EVERY, STAR.name)
MESSAGES = Criterion(
    "messages and bytes",
    2,
    "How often must a worker get weights, and send gradients? Besides that only messages of a number or two.",
    needs=NEEDED,
    how=asked(Training.frugal),
)
SHARED = (W_UNCHANGED, STAR, MESSAGES)
