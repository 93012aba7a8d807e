"""Trainings in which ranks step alone for a period: what they lead to, and what is found of an answer's."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from graders.grading.communication import each_rank_calls
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Finding, Kind, Observed, compare
from graders.units.models import copies_of
from graders.units.optimizers import PlainSGD
from graders.units.unit_08.replicas import FROZEN, TRAINED, Forked, LocalReply, loss_of, state_of

Batches = list[list[tuple[Tensor, Tensor]]]
"""For each rank and step, inputs and targets [B, WIDTH]."""

TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-10, 1e-11)}
"""Relative and absolute."""


@dataclass(frozen=True, slots=True)
class Local:
    """own_layers: ranks use one of two branches, and only some have gradients there."""

    ranks: int = feature(3, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    steps: int = feature(6, "{} steps")
    period: int = feature(2, "period {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    own_layers: bool = feature(False, lambda own: "layers that only some ranks use" if own else "")


@dataclass(frozen=True, slots=True)
class Expected:
    """The weights at the end; for each rank its losses, and its optimizer's state as `state_of` tells it."""

    weights: list[Tensor]
    losses: list[list[float]]
    states: list[tuple[list[Tensor], list[float]]]


def expected_of(models: list[Forked], optimizers: list[PlainSGD], batches: Batches, period: int) -> Expected:
    """Computed replica by replica."""
    losses: list[list[float]] = [[] for _ in models]
    steps = len(batches[0])
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inputs, targets = batches[rank][step]
            optimizer.zero_grad()
            loss = loss_of(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses[rank].append(loss.item())
        if (step + 1) % period == 0 or step + 1 == steps:
            average(models)
    return Expected(copies_of(models[0].parameters()), losses, [state_of(each) for each in optimizers])


def average(models: list[Forked]) -> None:
    """Every trainable parameter becomes its mean over the models."""
    with torch.no_grad():
        for replicas in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack(replicas).mean(0)
            for each in replicas:
                if each.requires_grad:
                    each.copy_(mean)


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training was given, and what came out. values: of SHAPES. batches[r]: rank r's."""

    values: list[Tensor]
    batches: Batches
    run: Observed[LocalReply]
    expected: Expected


def own(tried: Tried[Local]) -> Finding:
    """Passes if parameters are the tensors that they were, and buffers and frozen ones were left alone."""
    for rank, reply in enumerate(tried.seen.run.results):
        frozen = [reply.model.parameters[position] for position in FROZEN]
        where = f"on rank {rank}"
        if not reply.model.same:
            return Finding(False, f"{where} a parameter is another tensor, or no longer as trainable.")
        if not compare.same(frozen, [tried.seen.values[position] for position in FROZEN]):
            return Finding(False, f"{where} a frozen parameter has changed.")
        if not reply.kept:
            return Finding(False, f"{where} the list of batches has changed.")
        if reply.taken != tried.case.features.steps:
            return Finding(False, f"{where} the optimizer made {reply.taken} steps.")
        momentum, rates = tried.seen.expected.states[rank]
        if reply.rates != rates or len(reply.momentum) != len(momentum):
            return Finding(False, f"{where} the optimizer has lost its state, or its learning rates.")
        samples = sum(len(inputs) for inputs, _ in tried.seen.batches[rank])
        seen = compare.equal(reply.model.seen, torch.full((1,), float(samples)), f"{where} its buffer")
        if not seen.passed:
            return seen
    return Finding(True, "Buffers, frozen parameters and the parameters' tensors are what they were.")


def losses(tried: Tried[Local]) -> Finding:
    """Passes if each rank returned the loss of each of its steps."""
    wanted_losses = tried.seen.expected.losses
    for rank, (reply, expected) in enumerate(zip(tried.seen.run.results, wanted_losses, strict=True)):
        what = f"what rank {rank} returns"
        if not isinstance(reply.returned, list) or len(reply.returned) != len(expected):
            return Finding(
                False, f"{what} is {compare.shown(reply.returned)}; expected {len(expected)} floats."
            )
        near = (
            compare.near(seen, wanted, what, rtol=1e-4)
            for seen, wanted in zip(reply.returned, expected, strict=True)
        )
        finding = next((each for each in near if not each.passed), None)
        if finding:
            return finding
    return Finding(True, "Each rank returns the loss of each of its steps.")


def calls(tried: Tried[Local]) -> Finding:
    """Passes if every rank calls all_reduce once a period, with all its trainable numbers."""
    times = ceil(tried.case.features.steps / tried.case.features.period)
    finding = each_rank_calls([tried.seen.run], ["all_reduce"] * times, "")
    if not finding.passed:
        return finding
    nbytes = TRAINED * tried.seen.values[0].element_size()
    for event in tried.seen.run.communication(0):
        if event.nbytes != nbytes:
            text = f"rank 0 gives all_reduce {event.nbytes} bytes; expected {nbytes}."
            return Finding(False, text, Kind.TOO_MUCH if event.nbytes > nbytes else Kind.OTHER)
    return Finding(True, f"each rank calls all_reduce {times} times, with {nbytes} bytes.")
