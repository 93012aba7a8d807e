"""What is found of the calls of training steps on a mesh."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.kit import Finding, Kind, compare
from graders.units.unit_12.drivers import step as drivers
from graders.units.unit_12.stepped import SIZES, Run, Stepped

A_NUMBER = 8
"""Bytes: a collective of so much may be on any group, for the loss."""


def _collectives(run: Run, rank: int) -> Iterator[Event]:
    return (e for e in run.communication(rank) if e.op not in ("send", "recv") and len(e.group) > 1)


def _line(drawn: Stepped, rank: int, axis: int) -> tuple[int, ...]:
    """The ranks that differ from this one along an axis."""
    numbers = torch.tensor(drawn.order).view(drawn.shape)
    at: list[int | slice] = list(drawn.place(rank))
    at[axis] = slice(None)
    return tuple(sorted(numbers[tuple(at)].tolist()))


def sums(drawn: Stepped, run: Run) -> Finding:
    """Passes if along data each gradient was summed once, along tensor what the model itself sums,
    between the first stage and the last what they share, and nothing else.
    """
    for rank, reply in enumerate(run.results):
        lines = {
            _line(drawn, rank, 0): "data",
            _line(drawn, rank, 2): "tensor",
            _ends(drawn, rank): "the two copies",
        }
        every = (each for step in reply.gradients for each in step.values())
        own = sum(each.nbytes + A_NUMBER for each in every if each is not None)
        allowed = {
            "data": own if drawn.shape[0] > 1 else 0,
            "tensor": _of_the_model(drawn, rank),
            "the two copies": drawn.steps * _embedding(drawn, rank),
            "other groups": 0,
        }
        along = dict.fromkeys(allowed, 0)
        for event in _collectives(run, rank):
            if event.nbytes > A_NUMBER:
                along[lines.get(tuple(sorted(event.group)), "other groups")] += event.nbytes
        if any(along[name] > allowed[name] for name in along):
            said = ", ".join(f"along {name} {along[name]:,} ({allowed[name]:,})" for name in along)
            told = f"{drawn.where} rank {rank} gave collectives bytes {said}"
            return Finding(False, f"{told}; in parentheses what is needed.", Kind.TOO_MUCH)
    return Finding(True, "Each gradient is summed along data once.")


def _ends(drawn: Stepped, rank: int) -> tuple[int, ...]:
    """The ranks of this share on the ends of the pipeline, in order, if this one is on an end."""
    ends = [other for other in _line(drawn, rank, 1) if drawn.place(other)[1] in (0, drawn.shape[1] - 1)]
    return tuple(ends) if rank in ends else ()


def _embedding(drawn: Stepped, rank: int) -> int:
    """Bytes of the gradient that this rank shares with one of another stage."""
    shares_it = drawn.tied and drawn.shape[1] > 1 and _ends(drawn, rank)
    return 4 * SIZES["vocabulary"] * SIZES["width"] if shares_it else 0


def _of_the_model(drawn: Stepped, rank: int) -> int:
    """Bytes that the model itself sums up along tensor: two tensors x_BTD a block in each pass."""
    if drawn.shape[2] == 1:
        return 0
    return 4 * sum(_crossing(tokens) for batch in drawn.own(rank) for tokens, _ in batch)


def _crossing(tokens: Tensor) -> int:
    return 4 * tokens.numel() * SIZES["width"]


def messages(drawn: Stepped, run: Run) -> Finding:
    """Passes if activations and their gradients cross once, and copies' gradients to the other copy, each
    in one message.
    """
    for rank in range(drawn.ranks):
        _, stage, _ = drawn.place(rank)
        crossing = [_crossing(tokens) for batch in drawn.own(rank) for tokens, _ in batch]
        line = {drawn.place(other)[1]: other for other in _line(drawn, rank, 1)}
        nbytes = {line[near]: sum(crossing) for near in (stage - 1, stage + 1) if near in line}
        count = dict.fromkeys(nbytes, len(crossing))
        for end in _ends(drawn, rank):
            nbytes[end] = nbytes.get(end, 0) + drawn.steps * _embedding(drawn, rank)
            count[end] = count.get(end, 0) + drawn.steps
        for peer, (messages, sent) in _sent(run, rank).items():
            if sent > nbytes.get(peer, 0) or messages > count.get(peer, 0):
                told = f"{drawn.where} rank {rank} sends rank {peer} {sent:,} bytes in {messages} messages"
                counted = compare.counted(drawn.steps, "step")
                needed = f"needed are {nbytes.get(peer, 0):,} in {count.get(peer, 0)}, in {counted}"
                return Finding(False, f"{told}; {needed}.", Kind.TOO_MUCH)
    return Finding(True, "Each micro-batch crosses each cut once in each direction.")


def in_flight(drawn: Stepped, run: Run) -> Finding:
    """Passes if each stage sends as many micro-batches on as stages follow, it included, before the first
    of the first step is back.
    """
    for rank in range(drawn.ranks):
        _, stage, _ = drawn.place(rank)
        line = {drawn.place(other)[1]: other for other in _line(drawn, rank, 1)}
        if stage + 1 not in line:
            continue
        steps = [e.sequence for e in run.events if e.rank == rank and e.op == drivers.STEP]
        second = math.inf if drawn.steps == 1 else steps[1]
        events = [
            event
            for event in run.communication(rank)
            if event.peer == line[stage + 1] and event.sequence < second and event.nbytes > A_NUMBER
        ]
        back = min((event.end for event in events if event.op == "recv"), default=0.0)
        early = sum(event.op == "send" and event.start < back for event in events)
        needed = min(len(drawn.own(rank)[0]), drawn.shape[1] - stage)
        if early < needed:
            told = f"{drawn.where} before the first micro-batch is back stage {stage} has sent on {early}"
            return Finding(False, f"{told}; expected at least {needed}.")
    return Finding(True, "All stages send micro-batches on before the first is back.")


def _sent(run: Run, rank: int) -> dict[int, tuple[int, int]]:
    """Messages and bytes from a rank to each other one, those of a number left out."""
    found: dict[int, tuple[int, int]] = {}
    for event in run.communication(rank):
        if event.op == "send" and event.peer is not None and event.nbytes > A_NUMBER:
            messages, nbytes = found.get(event.peer, (0, 0))
            found[event.peer] = messages + 1, nbytes + event.sent
    return found
