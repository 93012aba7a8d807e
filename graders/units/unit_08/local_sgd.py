"""The grader of `local_sgd`."""

import copy
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from graders.grading.cases import both
from graders.grading.communication import each_rank_calls
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.models import copies_of
from graders.units.one_by_one import one_by_one
from graders.units.optimizers import PlainSGD
from graders.units.unit_08 import drivers
from graders.units.unit_08.replicas import (
    FROZEN,
    SHAPES,
    TRAINED,
    WIDTH,
    Forked,
    LocalReply,
    in_two_groups,
    loss_of,
    state_of,
)

Batches = list[list[tuple[Tensor, Tensor]]]
"""For each rank and step, inputs and targets [B, WIDTH]."""

TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-10, 1e-11)}
"""Relative and absolute."""

_ANY_PERIOD = ("any period, any number of ranks",)


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
        said = f"rank 0 calls {len(tried.seen.run.calls(0))} times"
        others = sorted({*tried.seen.run.calls(0)} - {"all_reduce"})
        text = f"{said}{', ' + ', '.join(others) if others else ''}; expected all_reduce {times} times."
        return Finding(False, text, finding.kind)
    nbytes = TRAINED * tried.seen.values[0].element_size()
    for event in tried.seen.run.communication(0):
        if event.nbytes != nbytes:
            text = f"rank 0 gives all_reduce {event.nbytes} bytes; expected {nbytes}."
            return Finding(False, text, Kind.TOO_MUCH if event.nbytes > nbytes else Kind.OTHER)
    return Finding(True, f"each rank calls all_reduce {times} times, with {nbytes} bytes.")


def a_tensor(rng: Rng, size: int, local: Local) -> Tensor:
    """Inputs or targets [size, WIDTH]."""
    return rng.normal(size, WIDTH, dtype=local.dtype)


@one_by_one(
    base=Local(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "the weights",
            4,
            "Each rank steps with its own gradients. After `period` steps every rank's weights become the "
            "mean of all ranks' weights. Gradients are never averaged, and old ones never added.",
        ),
        Criterion(
            "any period, any number of ranks",
            3,
            "At the end all ranks have the same weights, also where the number of steps is no multiple of "
            "the period.",
            vary=both(ranks=3, steps=7, period=3)
            + both(ranks=2, steps=5, period=1, dtype=torch.float64)
            + both(ranks=2, steps=3, period=5)
            + both(ranks=1, steps=3, period=2)
            + both(ranks=2, steps=0, period=3),
        ),
        Criterion(
            "layers that only some ranks train",
            1,
            "A parameter that has no gradient on this rank may have changed on another: it is averaged too. "
            "(PeriodicModelAverager, and PostLocalSGDOptimizer with it, leaves it out, and the ranks wait "
            "for each other or drift apart.)",
            needs=_ANY_PERIOD,
            vary=both(steps=5, own_layers=True),
        ),
        Criterion(
            "what stays a rank's own",
            1,
            "The model keeps its parameters, those that are frozen their numbers, each rank its buffers, its "
            "optimizer's state and its list of batches; nobody puts the model into another mode. (torchft "
            "averages frozen parameters too.)",
            needs=_ANY_PERIOD,
            how=own,
        ),
        Criterion("losses", 1, "One float a step, of this rank's own batch.", needs=_ANY_PERIOD, how=losses),
        Criterion(
            "all-reduces",
            3,
            "One all_reduce of all trainable parameters laid end to end, after each `period` steps and once "
            "for what is left; none where nothing has changed since the last.",
            needs=("layers that only some ranks train", "what stays a rank's own"),
            how=calls,
        ),
    ),
    hints=(
        "What is a training step of one rank, with no other rank? Write that first. At which step numbers "
        "does something more happen?",
        "What does the mean of weights need? One flat tensor, one all_reduce, one division; then copy_ each "
        "piece into its parameter, under torch.no_grad().",
        "With 7 steps and a period of 3: after which steps do the ranks talk? After 3, 6 and 7.",
    ),
)
def local_sgd(answer: Answer, local: Local, rng: Rng) -> tuple[Finding, Trained]:
    """Every rank's weights at the end, beside the same replicas trained in one process."""
    values = [rng.normal(*shape, dtype=local.dtype) for shape in SHAPES]
    branches = [rank % 2 if local.own_layers else 0 for rank in range(local.ranks)]
    batches = [
        [(a_tensor(rng, size, local), a_tensor(rng, size, local)) for _ in range(local.steps)]
        for size in range(2, 2 + local.ranks)
    ]
    rates = (0.01 * rng.integer(2, 5), 0.01 * rng.integer(6, 9))
    given = (values, per_rank(branches), per_rank(copy.deepcopy(batches)), rates, local.period)
    run = answer.launch(drivers.local_sgd, *given, ranks=local.ranks)
    models = [Forked(values, branch) for branch in branches]
    optimizers = [in_two_groups(model, rates) for model in models]
    expected = expected_of(models, optimizers, batches, local.period)
    right = (
        compare.close(seen, wanted, f"parameter {position} on rank {rank}", *TOLERANCES[local.dtype])
        for rank, reply in enumerate(run.results)
        for position, (seen, wanted) in enumerate(
            compare.side_by_side(reply.model.parameters, expected.weights)
        )
        if position not in FROZEN
    )
    return compare.first_failure(right), Trained(values, batches, run, expected)
