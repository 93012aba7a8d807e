"""What the server's log says of a training: who got weights when, and which gradients came."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.kit import Finding, Observed, compare
from graders.units.unit_08.on_the_server import Training
from graders.units.unit_08.replies import TrainedReply

SOON = 2e-3
"""Seconds that messages may take; a gradient takes five times as long."""


def fresh(training: Training) -> Finding:
    """Passes if every gradient was computed at the weights that the server had when it sent them."""
    weights = training.problem.w.clone()
    replies = [replies[0] for replies in training.run.results]
    pushed: Counter[int] = Counter()
    fetched: defaultdict[int, list[Tensor]] = defaultdict(list)
    for event in server_log(training.run, training.problem.w.nbytes):
        worker = event.peer
        if worker is None:
            continue
        if event.op == "send":
            fetched[worker].append(weights.clone())
            continue
        first = training.pace.push * pushed[worker]
        pushed[worker] += 1
        sent = replies[worker].given[first : first + training.pace.push]
        weights = weights - training.rate * sum(sent, torch.zeros_like(weights))
    return compare.first_failure(
        _as_fetched(training, reply, fetched[worker], worker)
        for worker, reply in enumerate(replies[1:], start=1)
    )


def in_order(training: Training) -> Finding:
    """Passes if each worker fetches and sends in the order of its steps."""
    log = server_log(training.run, training.problem.w.nbytes)
    for worker in range(1, training.workers + 1):
        expected = [
            (what, step)
            for step in range(training.steps)
            for what, due in (
                ("send", step % training.pace.fetch == 0),
                ("recv", (step + 1) % training.pace.push == 0 or step + 1 == training.steps),
            )
            if due
        ]
        mine = [event for event in log if event.peer == worker]
        seen = [event.op for event in mine]
        if seen != [what for what, _ in expected]:
            said = ", ".join("fetches" if op == "send" else "pushes" for op in seen)
            return Finding(False, f"worker {worker} {said}; that is not the order of its steps.")
        spans = training.computing(worker)
        for event, (what, step) in zip(mine, expected, strict=True):
            if what == "send" and step and event.end < spans[step - 1][1]:
                text = f"worker {worker} gets the weights for step {step} before it has done step {step - 1}"
                return Finding(False, f"{text}.")
            if what == "recv" and step + 1 < training.steps and event.end > spans[step + 1][0] + SOON:
                text = f"worker {worker} begins step {step + 1} before it sends what is due after {step}"
                return Finding(False, f"{text}.")
    return Finding(True, "in the order of the steps.")


def _as_fetched(training: Training, reply: TrainedReply, fetched: list[Tensor], worker: int) -> Finding:
    """Passes if a worker's weights were these, and in between those with its own gradients taken off."""

    def each() -> Iterator[Finding]:
        for step, seen in enumerate(reply.seen):
            if step // training.pace.fetch >= len(fetched):
                yield Finding(False, f"worker {worker} got no weights in step {step}.")
            since = step % training.pace.fetch
            own = sum(reply.given[step - since : step], torch.zeros_like(seen))
            wanted = fetched[step // training.pace.fetch] - training.lr * own
            what = f"the weights of worker {worker} in step {step}"
            yield compare.close(seen, wanted, what, *training.within)

    return compare.first_failure(each())


def server_log(run: Observed[list[TrainedReply]], nbytes: int) -> list[Event]:
    """Rank 0's messages of tensors of at least so many bytes, in the order in which they took effect."""

    def moment(event: Event) -> float:
        return event.start if event.op == "send" else event.end

    mine = (event for event in run.communication(0) if event.nbytes >= nbytes)
    return sorted(mine, key=moment)
