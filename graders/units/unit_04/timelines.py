"""Unit 04, a Horovod timeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_04.drivers import calls as drivers


@exercise(
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "one step",
            2,
            "Find the end of the last negotiation, and each tensor's time on the network; add up what lies "
            "before and what lies after. Of a span that the end cuts in two, a part is hidden.",
        ),
        Criterion(
            "fused tensors",
            1,
            "The network is busy once, however many tensors or messages show it: join spans that overlap "
            "before you add up.",
        ),
        Criterion("every step", 1, "Each step has a backward pass of its own, which ends by itself."),
        Criterion(
            "what else is there",
            1,
            "Broadcasts, copies, moments, names: only all-reduces on the network count. ALLREDUCE itself "
            "lies round the network's time, with copies and waiting.",
        ),
        Criterion(
            "any library", 1, "The name ends in _ALLREDUCE, whatever library did it; a negotiation's too."
        ),
        Criterion(
            "any order",
            1,
            'An "E" closes the last "B" of its pid in time, not in the list: sort by "ts".',
            needs=("fused tensors", "every step", "what else is there"),
        ),
    ),
    hints=(
        "What do the spans of one tensor look like, from its negotiation to the end of its ALLREDUCE?",
        "How would you compute for how long at least one of several spans is open?",
        "To which step does the third negotiation of a tensor belong?",
    ),
)
def overlap_fraction(answer: Answer, rng: Rng) -> Findings:
    """Drawn timelines of the form that Horovod writes."""
    yield "one step", _judged(answer, [_drawn(rng, 1, [1] * 4), _drawn(rng, 1, [1, 1])])
    fused = [_drawn(rng, 1, [3, 2, 4]), _drawn(rng, 1, [1, 5]), _drawn(rng, 1, [1, 2, 1], overlap=60)]
    yield "fused tensors", _judged(answer, fused)
    steps = [_drawn(rng, rng.integer(3, 5), [1, 1, 1]), _drawn(rng, 2, [1, 1])]
    yield "every step", _judged(answer, steps)
    others = [_with_more(rng, _drawn(rng, 1, [1] * 3)) for _ in range(2)]
    yield "what else is there", _judged(answer, others)
    libraries = [_drawn(rng, 1, [1, 1], library) for library in ("NCCL", "MPI", "ONECCL")]
    yield "any library", _judged(answer, libraries)
    mixed = [_shuffled(rng, _with_more(rng, _drawn(rng, 3, [2, 1, 2]))) for _ in range(2)]
    yield "any order", _judged(answer, mixed)


@dataclass(frozen=True, slots=True)
class Timeline:
    """events: as Horovod writes them. hidden, busy: microseconds."""

    events: list[dict[str, Any]]
    hidden: int
    busy: int


def _judged(answer: Answer, timelines: Sequence[Timeline]) -> Finding:
    seen = answer.call(drivers.given_and_left, [[timeline.events] for timeline in timelines])
    findings = (
        finding
        for reply, timeline in compare.side_by_side(seen, timelines)
        for finding in (
            compare.near(
                reply.returned,
                timeline.hidden / timeline.busy,
                f"with {timeline.hidden:,} of {timeline.busy:,} µs on the network hidden, the fraction",
                rtol=1e-9,
            ),
            Finding(compare.same(reply.left, [timeline.events]), "The trace is not what it was before."),
        )
    )
    return compare.first_failure(findings, f"{len(timelines)} timelines have the fractions that they should.")


def _drawn(
    rng: Rng, steps: int, messages: Sequence[int], library: str = "GLOO", overlap: int = 0
) -> Timeline:
    """messages: how many tensors are fused in each message of a step.

    At least one message of a step is on the network when backward ends. overlap: how many microseconds
    before the end of one message the next may begin. A pause between steps may be shorter than one in them.
    """
    events: list[dict[str, Any]] = []
    now = hidden = busy = 0
    tensors = sum(messages)
    for pid in range(1, tensors + 1):
        name = {"name": f"allreduce.layer{pid}.weight"}
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": name})
    for _ in range(steps):
        # In which order tensors become ready differs from step to step.
        numbers = [1 + place for place in torch.randperm(tensors, generator=rng.generator).tolist()]
        first, network, spans, ready = 0, now, [], now
        for fused in messages:
            pids = numbers[first : first + fused]
            first += fused
            for each in pids:
                ready += rng.choice((rng.integer(40, 90), rng.integer(40, 600 if steps > 1 else 90)))
                events += _span("NEGOTIATE_ALLREDUCE", each, ready - rng.integer(20, 39), ready)
            start = max(network - overlap, ready) + rng.integer(21, 30)
            network = max(network, start) + rng.integer(60, 300)
            for each in pids:
                events += _reduced(rng, library, each, (ready, start, network))
            spans.append((start, network))
        on_network = {moment for start, end in spans for moment in range(start, end)}
        busy += len(on_network)
        hidden += sum(moment < ready for moment in on_network)
        now = network + rng.integer(20, 400)
    return Timeline(events, hidden, busy)


def _span(name: str, pid: int, start: int, end: int) -> list[dict[str, Any]]:
    return [
        {"ph": "B", "name": name, "ts": start, "pid": pid},
        {"ph": "E", "ts": end, "pid": pid},
    ]


def _reduced(rng: Rng, library: str, pid: int, moments: tuple[int, int, int]) -> list[dict[str, Any]]:
    """What follows a tensor's negotiation. moments: when that ended, and begin and end on the network."""
    ready, start, end = moments
    copied = start - rng.integer(2, 9)
    inner = [
        *_span("MEMCPY_IN_FUSION_BUFFER", pid, copied - rng.integer(1, 9), copied),
        *_span(f"{library}_ALLREDUCE", pid, start, end),
        *_span("MEMCPY_OUT_FUSION_BUFFER", pid, end + 1, end + rng.integer(2, 9)),
    ]
    outer = _span("ALLREDUCE", pid, ready + 1, end + 15)
    return [outer[0], *inner, outer[1]]


def _with_more(rng: Rng, timeline: Timeline) -> Timeline:
    """The same with moments at which ranks were ready, and with broadcasts: before, after, and one that is
    negotiated while gradients are still on the network.
    """
    shift, last = 5000, 10**6
    moved = [{**event, "ts": event["ts"] + shift} if "ts" in event else event for event in timeline.events]
    pid = 1000
    extra: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": "broadcast.layer1.weight"}}
    ]
    ends = max(event["ts"] for event in moved if "ts" in event)
    for begin in (rng.integer(1, 99), ends - 100, last):
        extra += _span("NEGOTIATE_BROADCAST", pid, begin, begin + 50)
        outer = _span("BROADCAST", pid, begin + 60, begin + 900)
        extra += [outer[0], *_span("GLOO_BCAST", pid, begin + 70, begin + 800), outer[1]]
    negotiated = [event for event in moved if event.get("name") == "NEGOTIATE_ALLREDUCE"]
    moments = [
        {"ph": "X", "name": str(rank), "ts": event["ts"] + rank, "pid": event["pid"], "dur": 0}
        for event in negotiated
        for rank in range(2)
    ]
    first = {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1}}
    cycle = {"ph": "i", "name": "CYCLE_START", "ts": shift + 7, "s": "g"}
    return Timeline([first, cycle, *extra, *moved, *moments], timeline.hidden, timeline.busy)


def _shuffled(rng: Rng, timeline: Timeline) -> Timeline:
    places = torch.randperm(len(timeline.events), generator=rng.generator).tolist()
    return Timeline([timeline.events[place] for place in places], timeline.hidden, timeline.busy)
