"""Figures in words: what a reader who does not see them needs to know."""

from collections import Counter
from collections.abc import Iterable, Sequence

from course_lib.figures.drawn_run import DrawnRun
from course_lib.figures.layout import time_unit
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.memory import Memory
from course_lib.runtime.communication.traffic import COMMUNICATION

_MOST_RANKS = 8
"""Up to so many ranks are told one by one."""


def seconds_in_words(seconds: float) -> str:
    """`12.5 µs`."""
    unit = time_unit(seconds)
    return f"{seconds / unit.seconds:.3g} {unit.name}"


_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def bytes_in_words(nbytes: float) -> str:
    """`12.3 kB`."""
    size, unit = next(((size, unit) for size, unit in _BYTES if nbytes >= size), (1, "B"))
    return f"{nbytes / size:.3g} {unit}"


def timeline_alt_text(run: DrawnRun, ranks: Sequence[int], start: float, end: float) -> str:
    """What each rank did in a part of a run's time, in seconds: calls, time computing and communicating."""
    clock = "virtual" if run.engine == "simulated" else "measured"
    nodes = len({run.cluster.node_of(rank) for rank in ranks})
    head = (
        f"Timeline of {_count(len(ranks), 'rank')} on {_count(nodes, 'node')}, "
        f"{seconds_in_words(end - start)} of {clock} time."
    )
    in_view = [event for event in run.events if event.end >= start and event.start <= end]
    if len(ranks) > _MOST_RANKS:
        wanted = set(ranks)
        return f"{head} All ranks together: {_calls(e for e in in_view if e.rank in wanted)}."
    memory = Memory.of(run.events, run.ranks) if any(e.kind is Kind.MEMORY for e in run.events) else None
    told = (
        _rank_in_words(rank, [e for e in in_view if e.rank == rank], memory[rank].peak if memory else 0)
        for rank in ranks
    )
    return " ".join([head, *told])


def _rank_in_words(rank: int, events: Sequence[Event], held: int) -> str:
    """events: those in view. held: bytes, the most of the whole run, which stands beside the rank's line."""
    computing = sum(event.seconds for event in events if event.kind is Kind.COMPUTE)
    phases = dict.fromkeys(event.op for event in events if event.kind is Kind.SPAN)
    parts = [_calls(events)]
    if computing:
        parts.append(f"computing for {seconds_in_words(computing)}")
    for kind in ("queues", "waits"):
        of_host = sum(event.seconds for event in events if event.kind is Kind.HOST and event.op == kind)
        if of_host:
            parts.append(f"its host {kind} for {seconds_in_words(of_host)}")
    if held:
        parts.append(f"holding at most {bytes_in_words(held)}")
    if phases:
        parts.append("phases " + ", ".join(phases))
    return f"Rank {rank}: {'; '.join(parts)}."


def _calls(events: Iterable[Event]) -> str:
    """`3 send, 3 recv, 1 all_reduce (asynchronous)`."""
    calls = Counter(
        event.op + (" (asynchronous)" if event.asynchronous else "")
        for event in events
        if event.kind in COMMUNICATION
    )
    if not calls:
        return "no communication"
    return ", ".join(f"{number:,} {name}" for name, number in calls.items())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
