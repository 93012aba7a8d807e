"""What is found of the calls of a training step on a mesh."""

from collections import Counter

from torch import Tensor

from graders.grading.kit import Finding, Kind, compare
from graders.units.unit_12.stepped import SIZES, Run, Stepped

A_NUMBER = 8
"""Bytes: calls of so much may be made on any group, for the loss."""


def bytes_and_messages(drawn: Stepped, run: Run) -> Finding:
    """Passes if no rank gives collectives of a group, or sends another rank, more than it has to."""
    return compare.first_failure(
        finding
        for rank in range(len(run.results))
        for finding in (_collectives(drawn, run, rank), _messages(drawn, run, rank))
    )


def _collectives(drawn: Stepped, run: Run, rank: int) -> Finding:
    """Passes if along data each gradient was summed once, along tensor what the model itself sums, between
    the first stage and the last what they share, and nothing else.
    """
    gradients = run.results[rank].gradients.values()
    needed = {
        tuple(drawn.line(rank, 0)): sum(each.nbytes + A_NUMBER for each in gradients if each is not None),
        tuple(drawn.line(rank, 2)): 4 * sum(_crossing(tokens) for tokens, _ in drawn.own(rank)),
        tuple(_ends(drawn, rank)): _embedding(drawn, rank),
    }
    given = Counter[tuple[int, ...]]()
    for event in run.communication(rank):
        if event.op not in ("send", "recv") and len(event.group) > 1 and event.nbytes > A_NUMBER:
            given[tuple(sorted(event.group))] += event.nbytes
    for group, nbytes in given.items():
        if nbytes > needed.get(group, 0):
            what = f"Bytes that rank {rank} gives to collectives of ranks {[*group]}"
            return compare.at_most(nbytes, needed.get(group, 0), what, kind=Kind.TOO_MUCH)
    return Finding(True, "Each gradient is summed along data once.")


def _messages(drawn: Stepped, run: Run, rank: int) -> Finding:
    """Passes if activations and their gradients cross a cut once, and the copies' gradients go to the other
    copy, each in one message.
    """
    line, stage = drawn.line(rank, 1), drawn.place(rank)[1]
    needed = {
        line[near]: [_crossing(tokens) for tokens, _ in drawn.own(rank)]
        for near in (stage - 1, stage + 1)
        if 0 <= near < len(line)
    }
    for end in _ends(drawn, rank):
        needed[end] = [*needed.get(end, []), _embedding(drawn, rank)]
    sent: dict[int, list[int]] = {}
    for event in run.communication(rank):
        if event.op == "send" and event.peer is not None and event.nbytes > A_NUMBER:
            sent.setdefault(event.peer, []).append(event.nbytes)
    for peer, seen in sent.items():
        right = needed.get(peer, [])
        if len(seen) > len(right) or sum(seen) > sum(right):
            said = f"rank {rank} sends rank {peer} {sum(seen):,} bytes in {len(seen)} messages"
            return Finding(False, f"{said}; expected {sum(right):,} in {len(right)}.", Kind.TOO_MUCH)
    return Finding(True, "Each micro-batch crosses each cut once in each direction.")


def _ends(drawn: Stepped, rank: int) -> list[int]:
    """The ranks of this share on both ends of the pipeline, if this one is on an end."""
    line = drawn.line(rank, 1)
    return [line[0], line[-1]] if rank in (line[0], line[-1]) else []


def _embedding(drawn: Stepped, rank: int) -> int:
    """Bytes of the gradient that this rank shares with one of another stage."""
    shares_it = drawn.step.tied and drawn.step.shape[1] > 1 and _ends(drawn, rank)
    return 4 * SIZES["vocabulary"] * SIZES["width"] if shares_it else 0


def _crossing(tokens: Tensor) -> int:
    return 4 * tokens.numel() * SIZES["width"]


def in_flight(drawn: Stepped, run: Run) -> Finding:
    """Passes if each stage sends as many micro-batches on as stages follow, it included, before the first is
    back.
    """
    for rank in range(len(run.results)):
        line, stage = drawn.line(rank, 1), drawn.place(rank)[1]
        if rank == line[-1]:
            continue
        calls = [event for event in run.communication(rank) if event.peer == line[stage + 1]]
        back = min((event.end for event in calls if event.op == "recv"), default=0.0)
        early = sum(event.op == "send" and event.start < back for event in calls)
        expected = min(len(drawn.own(rank)), len(line) - stage)
        if early < expected:
            told = f"before the first micro-batch is back stage {stage} has sent on {early}"
            return Finding(False, f"{told}; expected at least {expected}.")
    return Finding(True, "All stages send micro-batches on before the first is back.")
