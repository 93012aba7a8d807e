"""Timelines of the form that Horovod writes, drawn."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from graders.grading.judging import feature
from graders.grading.kit import Rng, compare

Events = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Training:
    """messages: how many tensors are fused in each message of a step. overlap: how many microseconds before
    the end of one message the next may begin. more: whether broadcasts and moments are recorded too.
    """

    messages: tuple[int, ...] = feature((1, 1, 1), "messages of {} tensors")
    overlap: int = feature(0, lambda overlap: "two of which are on the network at once" if overlap else "")
    steps: int = feature(1, lambda steps: compare.counted(steps, "step"))
    library: str = feature("GLOO", "{}")
    more: bool = feature(False, lambda more: "broadcasts and moments too" if more else "")
    in_time: bool = feature(True, lambda in_time: "" if in_time else "events in any order")


def timeline(rng: Rng, case: Training) -> Events:
    """The events of a training. At least one message of a step is on the network when backward ends."""
    events = [_named(pid, f"allreduce.layer{pid}.weight") for pid in range(1, sum(case.messages) + 1)]
    now = 5000
    for _ in range(case.steps):
        step, end = _step(rng, case, now)
        events += step
        # Shorter, perhaps, than a pause within a step.
        now = end + rng.integer(20, 400)
    if case.more:
        events = _with_more(rng, events)
    if not case.in_time:
        places = torch.randperm(len(events), generator=rng.generator).tolist()
        events = [events[place] for place in places]
    return events


def _step(rng: Rng, case: Training, begin: int) -> tuple[Events, int]:
    """A step's events, and when the network is free again. Tensors become ready in a drawn order."""
    waiting = [1 + place for place in torch.randperm(sum(case.messages), generator=rng.generator).tolist()]
    events: Events = []
    ready = network = begin
    for fused in case.messages:
        pids, waiting = waiting[:fused], waiting[fused:]
        for pid in pids:
            ready += rng.choice((rng.integer(40, 90), rng.integer(40, 600 if case.steps > 1 else 90)))
            events += _span("NEGOTIATE_ALLREDUCE", pid, ready - rng.integer(20, 39), ready)
        start = max(network - case.overlap, ready) + rng.integer(21, 30)
        network = max(network, start) + rng.integer(60, 300)
        for pid in pids:
            events += _reduced(rng, case.library, pid, (ready, start, network))
    return events, network


def _named(pid: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def _span(name: str, pid: int, start: int, end: int, inner: Iterable[dict[str, Any]] = ()) -> Events:
    begun = {"ph": "B", "name": name, "ts": start, "pid": pid}
    return [begun, *inner, {"ph": "E", "ts": end, "pid": pid}]


def _reduced(rng: Rng, library: str, pid: int, moments: tuple[int, int, int]) -> Events:
    """What follows a tensor's negotiation. moments: when that ended, and begin and end on the network."""
    ready, start, end = moments
    copied = start - rng.integer(2, 9)
    inner = (
        *_span("MEMCPY_IN_FUSION_BUFFER", pid, copied - rng.integer(1, 9), copied),
        *_span(f"{library}_ALLREDUCE", pid, start, end),
        *_span("MEMCPY_OUT_FUSION_BUFFER", pid, end + 1, end + rng.integer(2, 9)),
    )
    return _span("ALLREDUCE", pid, ready + 1, end + 15, inner)


def _with_more(rng: Rng, events: Events) -> Events:
    """The same with a moment at which a rank was ready, and with broadcasts: before, after, and one that is
    negotiated while gradients are still on the network.
    """
    pid, last = 1000, max(event.get("ts", 0) for event in events)
    more = [_named(pid, "broadcast.layer1.weight")]
    more.append({"ph": "X", "name": "0", "ts": 5007, "pid": 1, "dur": 0})
    for begin in (rng.integer(1, 99), last - 100, last + 10**6):
        inner = _span("GLOO_BCAST", pid, begin + 70, begin + 800)
        more += _span("NEGOTIATE_BROADCAST", pid, begin, begin + 50)
        more += _span("BROADCAST", pid, begin + 60, begin + 900, inner)
    return more + events
