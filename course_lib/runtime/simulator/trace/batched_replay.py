"""A captured run of plain messages, carried out for all ranks at once with arrays.

The k-th send from a to b in a group, under a tag, is the k-th receive of b from a, whatever the clocks say.
And if no message finds its sender's way out or its receiver's way in taken, every time follows from earlier
ones by sums and maxima:

    start of a message = the later of the clocks of its send and its receive; if buffered, that of its send
    end of a message = its start, + bytes / bandwidth, + latency
    clock after a wait = the later of the clock before it and the end of the message

In one batch all ranks that can go on take their next wait. In the end it shows whether messages were
indeed in nobody's way. Then the clocks are bit for bit those of a run in turns. Whatever is not of this kind
is left to `course_lib.runtime.simulator.trace.replay`.
"""

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.call import Call
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.matching import matched_at_once
from course_lib.runtime.communication.traffic import RankTraffic, Traffic
from course_lib.runtime.simulator.trace.program import (
    POSITION_MASK,
    RANK_BITS,
    RANK_MASK,
    Entry,
    TraceProgram,
)

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max
_LOOK_EVERY = 512
_LEAST_WIDTH = 8
"""Batches in which fewer ranks than that go on, on average, take longer than the replay."""


@dataclass(frozen=True)
class MessageTable:
    """All sends and receives of a run that has come to its end: one number each, rank by rank."""

    trace: TraceProgram
    rank: Integers
    peer: Integers
    entry: Integers
    """Place of the call in the trace's entries."""
    start: Floats
    end: Floats
    seconds: float
    """Virtual time until the last rank ended."""

    def events(self) -> tuple[Event, ...]:
        """One event a call, in the order of their posts: by clock, then by rank, then as in the program."""
        forms = [_form(call) for call in self.trace.entries]
        order = np.argsort(self.start, kind="stable")
        columns = (
            column[order].tolist() for column in (self.entry, self.rank, self.peer, self.start, self.end)
        )
        return tuple(
            Event(rank=rank, peer=peer, start=start, end=end, sequence=sequence, **forms[entry])
            for sequence, (entry, rank, peer, start, end) in enumerate(zip(*columns, strict=True))
        )

    def traffic(self) -> Traffic:
        """Bytes and messages a rank, without making the events."""
        ranks = self.trace.ranks
        table = _CallTable(self.trace.entries)
        sends = table.sends[self.entry]
        nbytes = table.nbytes[self.entry]
        counts = {
            op: np.bincount(self.rank[chosen], minlength=ranks).tolist()
            for op, chosen in (("send", sends), ("recv", ~sends))
        }
        sent, received = (
            np.bincount(self.rank[chosen], weights=nbytes[chosen], minlength=ranks).astype(np.int64).tolist()
            for chosen in (sends, ~sends)
        )
        return Traffic(
            tuple(
                RankTraffic(
                    rank,
                    sent[rank],
                    received[rank],
                    counts["send"][rank],
                    {op: count[rank] for op, count in counts.items() if count[rank]},
                )
                for rank in range(ranks)
            )
        )


def replayed_in_batches(trace: TraceProgram) -> MessageTable | None:
    """All messages of the trace with their times. None if it is not of that kind, or narrow."""
    network = trace.network
    if trace.ranks < _LEAST_WIDTH or not network.timing.plain or not _only_messages(trace.entries):
        return None
    steps = _FlatProgram(trace)
    matches = _matches(steps, trace, network.cluster) if steps.wait_for_all_they_receive else None
    clocks = None if matches is None else _clocks(steps, matches)
    if matches is None or clocks is None:
        return None
    posted = clocks[steps.node_of_post]
    sent = np.where(steps.sends, posted, posted[matches.other])
    start = np.where(matches.buffered, sent, np.maximum(posted, posted[matches.other]))
    free = start + matches.seconds
    arrival = free + matches.latency
    # Messages that take no time at all would leave the order of turns to more than clocks.
    if not (arrival > start).all() or not all(
        _one_at_a_time(steps.rank[chosen], start[chosen], free[chosen])
        for chosen in (steps.sends, ~steps.sends)
    ):
        return None
    end = np.where(matches.buffered & steps.sends, posted, np.maximum(arrival, posted))
    seconds = float(clocks[steps.last].max())
    return MessageTable(trace, steps.rank, steps.peer, steps.entry, posted, end, seconds)


def _one_at_a_time(rank: Integers, start: Floats, free: Floats) -> bool:
    """Whether of each rank's messages, in the order of its program, none starts before its way is free."""
    return bool(((rank[1:] != rank[:-1]) | (start[1:] >= free[:-1])).all())


def _only_messages(entries: Sequence[Entry]) -> bool:
    return bool(entries) and all(isinstance(entry, Call) and entry.is_message for entry in entries)


def _form(call: Entry) -> dict[str, Any]:
    """What all events of a call have in common."""
    assert isinstance(call, Call)
    sends = call.op == "send"
    return {
        "op": call.op,
        "kind": Kind.POINT_TO_POINT,
        "nbytes": call.nbytes,
        "sent": call.nbytes if sends else 0,
        "received": 0 if sends else call.nbytes,
        "messages": int(sends),
        "group": call.group.members,
        "tag": call.tag,
        "asynchronous": call.asynchronous,
        "detail": call.detail,
        "line": call.line,
    }


class _CallTable:
    """The entries of a trace as columns; all are sends and receives."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        calls = [entry for entry in entries if isinstance(entry, Call)]
        self.sends: Booleans = np.array([call.op == "send" for call in calls])
        self.nbytes: Integers = np.array([call.nbytes for call in calls])
        self.channel = _numbered((call.group, call.tag) for call in calls)
        """Messages meet only in one group, under one tag."""
        self.kind = _numbered(call.message_type for call in calls)
        """What a send and its receive must agree on."""


def _numbered(values: Iterable[Hashable]) -> Integers:
    """Equal numbers for equal values."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values])


class _FlatProgram:
    """All programs one after another: the posts and what waits for them.

    A rank's clock changes only when it waits. So its life is a row of nodes, one before each wait and one at
    its end, and each has one clock. The nodes of all ranks are numbered through, rank by rank.
    """

    def __init__(self, trace: TraceProgram) -> None:
        self.table = _CallTable(trace.entries)
        lengths = np.array([len(program) for program in trace.programs])
        begins = np.cumsum(lengths) - lengths
        codes: Integers = np.concatenate([np.frombuffer(p, dtype=np.int64) for p in trace.programs])
        rank_of_step = np.repeat(np.arange(trace.ranks), lengths)
        posts = np.flatnonzero(codes >= 0)
        waits = np.flatnonzero(codes < 0)
        post_of_step = np.cumsum(codes >= 0) - 1
        called = post_of_step[begins[rank_of_step[waits]] + (~codes[waits] & POSITION_MASK)]
        # Where a call is waited for twice, the second time changes nothing.
        first_wait = np.full(len(posts), -1)
        first_wait[called[::-1]] = waits[::-1]
        first = first_wait[called] == waits
        waits, called = waits[first], called[first]

        self.rank: Integers = rank_of_step[posts]
        self.entry, self.peer = codes[posts] >> RANK_BITS, codes[posts] & RANK_MASK
        self.sends = self.table.sends[self.entry]
        is_wait = np.zeros(len(codes), dtype=np.int64)
        is_wait[waits] = 1
        node = np.cumsum(is_wait) - is_wait + rank_of_step
        self.node_of_post: Integers = node[posts]
        self.waits: Integers = node[waits]
        """The nodes before the waits."""
        self.called: Integers = called
        """For each wait, the post that it is for."""
        nodes = np.bincount(rank_of_step[waits], minlength=trace.ranks) + 1
        self.last: Integers = np.cumsum(nodes) - 1
        self.first: Integers = self.last - nodes + 1
        self.wait_for_all_they_receive = bool((self.sends | (first_wait >= 0)).all())


@dataclass(frozen=True)
class _Matches:
    """For each post the other side, whether the message is buffered, and what it takes."""

    other: Integers
    buffered: Booleans
    seconds: Floats
    latency: Floats


def _matches(steps: _FlatProgram, trace: TraceProgram, cluster: Cluster) -> _Matches | None:
    """What each message meets, and what it takes. None if one is left over or does not fit."""
    source = np.where(steps.sends, steps.rank, steps.peer)
    target = np.where(steps.sends, steps.peer, steps.rank)
    channels = (steps.table.channel[steps.entry] * trace.ranks + source) * trace.ranks + target
    other = matched_at_once(channels, steps.sends)
    kind, nbytes = steps.table.kind[steps.entry], steps.table.nbytes[steps.entry]
    if other is None or (kind != kind[other]).any():
        return None
    node_of_rank = np.array([cluster.node_of(rank) for rank in range(trace.ranks)])
    within = node_of_rank[source] == node_of_rank[target]
    intra, inter = cluster.intra_node, cluster.inter_node
    return _Matches(
        other,
        nbytes <= cluster.eager_limit,
        nbytes / np.where(within, intra.bandwidth, inter.bandwidth),
        np.where(within, intra.latency, inter.latency),
    )


def _clocks(steps: _FlatProgram, matches: _Matches) -> Floats | None:
    """The clock at each node. None if not all ranks come to their ends, or only a few at a time."""
    nodes = int(steps.last[-1]) + 1
    called, other = steps.called, matches.other[steps.called]
    own_node, other_node = steps.node_of_post[called], steps.node_of_post[other]
    # A buffered send is over when it is posted; what it sends arrives however late it is received.
    over = matches.buffered[called] & steps.sends[called]
    sent = matches.buffered[called] & ~steps.sends[called]
    # For the wait after each node: where both sides are posted, whose the other side is, and the times.
    own_post, other_post = np.zeros(nodes, np.int64), np.full(nodes, _NEVER)
    other_rank = np.zeros(nodes, np.int64)
    seconds, latency = np.zeros(nodes), np.zeros(nodes)
    own_post[steps.waits] = np.where(sent, other_node, own_node)
    other_post[steps.waits] = np.where(over, own_node, other_node)
    other_rank[steps.waits] = steps.rank[np.where(over, called, other)]
    seconds[steps.waits] = np.where(over, 0.0, matches.seconds[called])
    latency[steps.waits] = np.where(over, 0.0, matches.latency[called])

    clock = np.zeros(nodes)
    present = steps.first.copy()
    passed = 0
    for batch in itertools.count(1):
        able = present[other_rank[present]] >= other_post[present]
        before = present[able]
        if not len(before):
            return clock if (present == steps.last).all() else None
        end = np.maximum(clock[own_post[before]], clock[other_post[before]])
        end += seconds[before]
        end += latency[before]
        clock[before + 1] = np.maximum(clock[before], end)
        present += able
        passed += len(before)
        if batch % _LOOK_EVERY == 0 and passed < _LEAST_WIDTH * batch:
            return None
    return None
