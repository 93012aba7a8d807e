"""What ranks sent to whom: checks of calls, messages, bytes and virtual time, for all units."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from course_lib.cluster.topology import Link
from course_lib.runtime.communication.events import Event, Kind
from graders.grading import kinds
from graders.grading.answer import AnswerFailed, FailureKind, Observed
from graders.grading.exercise import Finding

# --- Which calls


def calls_of(runs: Iterable[Observed[Any]]) -> list[str]:
    """The communication calls of all ranks of all runs, by name."""
    return [call for run in runs for rank in range(len(run.results)) for call in run.calls(rank)]


def only_calls(calls: Collection[str], allowed: Collection[str], whose: str) -> Finding:
    """Passes if every call is one of those allowed. whose: who made them, for a sentence."""
    forbidden = sorted(set(calls) - set(allowed))
    if forbidden:
        return Finding(False, f"{whose} calls {', '.join(forbidden)}, which is not allowed here.")
    return Finding(True, f"{whose} calls only {in_words(sorted(set(calls)))}.")


def only_messages(runs: Sequence[Observed[Any]], whose: str) -> Finding:
    """Passes if there are no calls but send and recv."""
    return only_calls(calls_of(runs), ("send", "recv"), whose)


def each_rank_calls(runs: Sequence[Observed[Any]], expected: Sequence[str], passed: str) -> Finding:
    """Passes if every rank makes these calls, in any order, and no other. passed: what is said then."""
    for run in runs:
        for rank in range(len(run.results)):
            calls = run.calls(rank)
            if sorted(calls) != sorted(expected):
                text = f"rank {rank} of {len(run.results)} calls {in_words(calls)}"
                kind = kinds.Kind.TOO_MUCH if len(calls) > len(expected) else kinds.Kind.OTHER
                return Finding(
                    False, f"{text}; expected one {' and one '.join(expected)} on every rank.", kind
                )
    return Finding(True, passed)


def in_words(calls: Sequence[str]) -> str:
    """`recv, send`, or `nothing`."""
    return ", ".join(calls) or "nothing"


# --- How many messages and bytes


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one rank may send: so many messages, so many bytes."""

    messages: int
    nbytes: int


def traffic_within(observed: Observed[Any], allowance: Sequence[Allowance], where: str) -> Finding:
    """Passes if no rank sends more than it may. where: the setting, for a sentence."""
    most = 0
    for rank, allowed in enumerate(allowance):
        seen = observed.traffic[rank]
        most = max(most, seen.sent)
        if seen.messages > allowed.messages or seen.sent > allowed.nbytes:
            text = f"with {where}, rank {rank} sends {seen.messages:,} messages of {seen.sent:,} bytes"
            limit = f"at most {allowed.messages:,} messages, {allowed.nbytes:,} bytes are allowed"
            return Finding(False, f"{text} altogether; {limit}.", kinds.Kind.TOO_MUCH)
    return Finding(True, f"with {where}, no rank sends more than {most:,} bytes.")


def payload_of(observed: Observed[Any], op: str, nbytes: int) -> Finding:
    """Passes if every rank made only `op` calls, whose payloads add up to `nbytes`."""
    for rank in range(len(observed.results)):
        others = sorted(set(observed.calls(rank)) - {op})
        if others:
            return Finding(False, f"rank {rank} calls {', '.join(others)}; only {op} is needed.")
        payload = sum(event.nbytes for event in observed.communication(rank))
        if payload != nbytes:
            said = f"rank {rank} gave {op} {payload:,} bytes in all; expected {nbytes:,}."
            return Finding(False, said, kinds.Kind.TOO_MUCH if payload > nbytes else kinds.Kind.OTHER)
    return Finding(True, f"Every rank gave {op} {nbytes:,} bytes in all: each tensor once.")


# --- To whom


def _sends(observed: Observed[Any]) -> Iterator[tuple[Event, int]]:
    """Every message that was sent, and the rank that it went to."""
    return ((event, event.peer) for event in observed.events if event.op == "send" and event.peer is not None)


# --- How long

MEASURED = Link(latency=1e-3, bandwidth=1e6)
"""The link on which rounds are counted: 1 ms and 1 MB/s, so that both latency and bytes show."""


ASKING = 1e-3
"""So much longer a run may take: the time of a few questions."""


def seconds(messages: int, nbytes: float) -> float:
    """How long so many messages take on MEASURED, one after another, of so many bytes altogether."""
    return messages * MEASURED.latency + nbytes / MEASURED.bandwidth


def duration_within(observed: Observed[Any], allowed: float, where: str, rounds: str) -> Finding:
    """Passes if the run, on MEASURED links, took no longer than `allowed` seconds of virtual time. Who asks a
    message again and again whether it is over has it a few microseconds later, which is no round.
    """
    taken = max((event.end for event in observed.events), default=0.0)
    text = f"with {where} on links of 1 ms and 1 MB/s it takes {taken * 1e3:.3f} ms"
    return Finding(taken <= allowed * (1 + ASKING), f"{text}; {rounds} take {allowed * 1e3:.3f} ms.")


# --- Steps of a training


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank, from the driver's mark "step begins" to the one that ends it."""

    rank: int
    number: int
    calls: list[Event]
    marks: dict[str, Event]
    """The first mark of each label."""

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.number}"


def steps_of(observed: Observed[Any], end: str) -> Iterator[Step]:
    """Every step of every rank, up to the mark `end`. Raises AnswerFailed if a mark is not there."""
    for rank in range(len(observed.results)):
        calls = observed.communication(rank)
        marks = [event for event in observed.events if event.rank == rank and event.kind is Kind.SPAN]
        begins = [position for position, mark in enumerate(marks) if mark.op == "step begins"]
        for number, (begin, following) in enumerate(pairwise([*begins, len(marks)])):
            # Reversed, so that of several marks with one label the first stays.
            inside = {mark.op: mark for mark in reversed(marks[begin:following])}
            if end not in inside:
                raise AnswerFailed(FailureKind.UNREADABLE, f"Step {number} of rank {rank} has no end.")
            span = range(marks[begin].sequence, inside[end].sequence)
            yield Step(rank, number, [call for call in calls if call.sequence in span], inside)
