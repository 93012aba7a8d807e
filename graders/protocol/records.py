"""The records that a run is made of, as plain dictionaries and back.

What comes back is checked field by field: it may come from a process that the student's code has taken over.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from course_lib.cluster.device import Device
from course_lib.cluster.topology import Cluster, Disturbances, Link
from course_lib.launch.failures import Deadlock
from course_lib.runtime.communication.errors import PendingCall
from course_lib.runtime.communication.events import Event, Kind, SourceLine
from graders.grading.answer import PlainData
from graders.protocol.codec import CodecError


def cluster_to_plain(cluster: Cluster) -> PlainData:
    """A cluster with its links, device and disturbances as a dictionary of dictionaries."""
    return asdict(cluster)


def cluster_from_plain(plain: Mapping[str, Any]) -> Cluster:
    """The cluster of `cluster_to_plain`. Only a worker reads it, and a grader has written it."""
    links = {name: plain[name] and Link(**plain[name]) for name in ("intra_node", "inter_node", "host")}
    device = plain["device"] and Device(**plain["device"])
    disturbances = Disturbances(**plain["disturbances"])
    return Cluster(**{**plain, **links, "device": device, "disturbances": disturbances})


def events_to_plain(events: Sequence[Event]) -> PlainData:
    """Events as a table: for each field the events' values in order.

    Of groups and source lines there are few: each is written once, and the events have its number.
    """
    groups: dict[tuple[int, ...], int] = {}
    lines: dict[SourceLine | None, int] = {}
    table: dict[str, list[Any]] = {name: list(map(attrgetter(name), events)) for name in _EVENT_TYPES}
    table["kind"] = [kind.value for kind in table["kind"]]
    table["group"] = [groups.setdefault(group, len(groups)) for group in table["group"]]
    table["line"] = [lines.setdefault(line, len(lines)) for line in table["line"]]
    return {**table, "groups": list(groups), "lines": list(map(line_to_plain, lines))}


def events_from_plain(plain: PlainData, ranks: int, keep_line: Callable[[str], bool]) -> tuple[Event, ...]:
    """The events of a run of `ranks` ranks, from the table of `events_to_plain` that a worker sent.

    keep_line: whether to believe in a source file of this name. A line's text is read from that file by the
        process that shows it, so a name must not reach files that the answer has no business with.

    Raises CodecError for a missing, unknown or impossible field.
    """
    check_fields(plain, _TABLE_TYPES, "the table of events")
    table, number = dict(plain), len(plain["rank"])
    groups, lines = table.pop("groups"), table.pop("lines")
    for name, allowed in _EVENT_TYPES.items():
        if len(table[name]) != number:
            raise CodecError(f"not every event has a {name}")
        for kind in set(map(type, table[name])).difference(allowed):
            raise CodecError(f"an event has a {name} of the type {kind.__name__}")
    _check_numbers(table, ranks)
    table["kind"] = [Kind(name) for name in table["kind"]]
    table["group"] = _looked_up(table["group"], list(map(_group_from_plain, groups)))
    table["line"] = _looked_up(table["line"], [line_from_plain(line, keep_line) for line in lines])
    return tuple(map(Event, *(table[name] for name in _EVENT_TYPES)))


_EVENT_TYPES: dict[str, tuple[type, ...]] = {
    "rank": (int,),
    "op": (str,),
    "kind": (str,),
    "start": (float, int),
    "end": (float, int),
    "sequence": (int,),
    "nbytes": (int,),
    "sent": (int,),
    "received": (int,),
    "messages": (int,),
    "peer": (int, type(None)),
    "group": (int,),
    "tag": (int,),
    "asynchronous": (bool,),
    "detail": (str,),
    "line": (int,),
    "finished": (bool,),
}
"""The fields of an event, in its order."""
_TABLE_TYPES: dict[str, tuple[type, ...]] = dict.fromkeys((*_EVENT_TYPES, "groups", "lines"), (list,))
_KINDS = frozenset(kind.value for kind in Kind)
_LINE_TYPES: dict[str, tuple[type, ...]] = {"file": (str,), "line": (int,), "function": (str,)}


def _check_numbers(table: Mapping[str, Sequence[Any]], ranks: int) -> None:
    """Raise CodecError for a value that is of its type, and that no event of `ranks` ranks can have."""
    if not all(0 <= rank < ranks for rank in table["rank"]):
        raise CodecError(f"an event has the rank {max(table['rank'], key=abs)} in a run of {ranks}")
    if any(min(table[name], default=0) < 0 for name in ("nbytes", "sent", "received", "messages")):
        raise CodecError("an event has a negative number of bytes or messages")
    if not (all(map(math.isfinite, table["start"])) and all(map(math.isfinite, table["end"]))):
        raise CodecError("an event's time is not a finite number")
    for kind in set(table["kind"]) - _KINDS:
        raise CodecError(f"an event has the unknown kind {kind[:40]!r}")


def _group_from_plain(plain: Any) -> tuple[int, ...]:
    """The ranks of a group. Raises CodecError."""
    if type(plain) is not tuple or not all(type(member) is int for member in plain):
        raise CodecError("an event's group does not consist of ranks")
    return plain


def _looked_up(numbers: Sequence[int], known: Sequence[Any]) -> list[Any]:
    """What the numbers stand for. Raises CodecError for one that stands for nothing."""
    if not all(0 <= number < len(known) for number in numbers):
        raise CodecError("an event names a group or a line that was not sent")
    return [known[number] for number in numbers]


def deadlock_to_plain(deadlock: Deadlock) -> PlainData:
    """Who waited for whom, as a dictionary, without the source lines."""
    waiting = [
        {"rank": c.rank, "op": c.op, "peers": c.peers, "expects": c.expects, "detail": c.detail}
        for c in deadlock.waiting
    ]
    return {"waiting": waiting, "cycle": deadlock.cycle, "finished": deadlock.finished}


def deadlock_from_plain(plain: PlainData) -> Deadlock:
    """The deadlock of `deadlock_to_plain`, without its report. Raises CodecError for what cannot be drawn."""
    check_fields(plain, {"waiting": (list,), "cycle": (tuple,), "finished": (tuple,)}, "a deadlock")
    if len(plain["waiting"]) > _MOST_RANKS:
        raise CodecError("a deadlock has too many ranks")
    for call in plain["waiting"]:
        check_fields(call, _CALL_TYPES, "a call that waits")
        for name in ("op", "expects", "detail"):
            _check_label(call[name])
        _check_ranks((call["rank"],))
        _check_ranks(call["peers"])
    _check_ranks(plain["cycle"])
    _check_ranks(plain["finished"])
    calls = [PendingCall(**call) for call in plain["waiting"]]
    return Deadlock("", calls, plain["cycle"], plain["finished"])


_MOST_RANKS, _LONGEST_LABEL = 1024, 1000
_CALL_TYPES: dict[str, tuple[type, ...]] = {
    "rank": (int,),
    "op": (str,),
    "peers": (tuple,),
    "expects": (str,),
    "detail": (str,),
}


def _check_label(text: str) -> None:
    """Raise CodecError for a text that matplotlib would take for a formula, or that is no label."""
    if len(text) > _LONGEST_LABEL or "$" in text:
        raise CodecError("a call that waits is described in an impossible way")


def _check_ranks(ranks: Sequence[Any]) -> None:
    if len(ranks) > _MOST_RANKS or not all(type(rank) is int and 0 <= rank < _MOST_RANKS for rank in ranks):
        raise CodecError("a deadlock is of ranks that there cannot be")


def line_to_plain(line: SourceLine | None) -> PlainData:
    """A source line as a dictionary."""
    return None if line is None else {"file": line.file, "line": line.line, "function": line.function}


def line_from_plain(plain: Any, keep_line: Callable[[str], bool]) -> SourceLine | None:
    """The line, if its file is believed in (see `events_from_plain`). Raises CodecError."""
    if plain is None:
        return None
    check_fields(plain, _LINE_TYPES, "a source line")
    return SourceLine(**plain) if keep_line(plain["file"]) else None


def check_fields(plain: Any, types: Mapping[str, Sequence[type]], what: str) -> None:
    """Raise CodecError unless `plain` is a dictionary of exactly these keys, each of an allowed type."""
    if type(plain) is not dict or plain.keys() != types.keys():
        raise CodecError(f"{what} does not have exactly the fields {', '.join(types)}")
    for name, allowed in types.items():
        if type(plain[name]) not in allowed:
            raise CodecError(f"{what} has a {name} of the type {type(plain[name]).__name__}")
