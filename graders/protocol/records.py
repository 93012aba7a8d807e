"""The records that a run is made of, as plain dictionaries and back.

What comes back is checked field by field: it may come from a process that the student's code has taken over.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from course_lib.cluster.topology import Cluster, Disturbances, Link
from course_lib.launch.failures import Deadlock
from course_lib.runtime.communication.errors import PendingCall
from course_lib.runtime.communication.events import Event, Kind, SourceLine
from graders.grading.answer import PlainData
from graders.protocol.codec import CodecError


def cluster_to_plain(cluster: Cluster) -> PlainData:
    """A cluster with its links and disturbances as a dictionary of dictionaries."""
    return asdict(cluster)


def cluster_from_plain(plain: Mapping[str, Any]) -> Cluster:
    """The cluster of `cluster_to_plain`. Only a worker reads it, and a grader has written it."""
    links = {name: plain[name] and Link(**plain[name]) for name in ("intra_node", "inter_node", "host")}
    disturbances = Disturbances(**plain["disturbances"])
    return Cluster(**{**plain, **links, "disturbances": disturbances})


def event_to_plain(event: Event) -> PlainData:
    """An event as a dictionary, its source line too."""
    plain: dict[str, PlainData] = {name: getattr(event, name) for name in _EVENT_TYPES}
    plain["kind"] = event.kind.value
    plain["line"] = line_to_plain(event.line)
    return plain


def events_from_plain(plain: PlainData, ranks: int, keep_line: Callable[[str], bool]) -> tuple[Event, ...]:
    """The events of a run of `ranks` ranks, from the list of dictionaries that a worker sent.

    keep_line: whether to believe in a source file of this name. A line's text is read from that file by the
        process that shows it, so a name must not reach files that the answer has no business with.

    Raises CodecError for a missing, unknown or impossible field.
    """
    if type(plain) is not list:
        raise CodecError("the events are not a list")
    return tuple(_event_from_plain(item, ranks, keep_line) for item in plain)


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
    "group": (tuple,),
    "tag": (int,),
    "asynchronous": (bool,),
    "detail": (str,),
    "line": (dict, type(None)),
    "finished": (bool,),
}
_KINDS = frozenset(kind.value for kind in Kind)
_LINE_TYPES: dict[str, tuple[type, ...]] = {"file": (str,), "line": (int,), "function": (str,)}


def _event_from_plain(plain: Any, ranks: int, keep_line: Callable[[str], bool]) -> Event:
    check_fields(plain, _EVENT_TYPES, "an event")
    if not 0 <= plain["rank"] < ranks:
        raise CodecError(f"an event has the rank {plain['rank']} in a run of {ranks}")
    if not all(type(member) is int for member in plain["group"]):
        raise CodecError("an event's group does not consist of ranks")
    if any(plain[name] < 0 for name in ("nbytes", "sent", "received", "messages")):
        raise CodecError("an event has a negative number of bytes or messages")
    if not (math.isfinite(plain["start"]) and math.isfinite(plain["end"])):
        raise CodecError("an event's time is not a finite number")
    if plain["kind"] not in _KINDS:
        raise CodecError(f"an event has the unknown kind {plain['kind'][:40]!r}")
    line = line_from_plain(plain["line"], keep_line)
    return Event(**{**plain, "kind": Kind(plain["kind"]), "line": line})


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
