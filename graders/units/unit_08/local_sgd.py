"""The grader of `local_sgd`."""

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
from graders.units.unit_08.replicas import FROZEN, SHAPES, TRAINED, WIDTH, Forked, ReplicaReply, loss_of

Batches = list[list[tuple[Tensor, Tensor]]]
"""For each rank and step, inputs and targets [B, WIDTH]."""


@dataclass(frozen=True, slots=True)
class Local:
    """own_layers: ranks use one of two branches, and only some have gradients there."""

    ranks: int = feature(3, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    steps: int = feature(6, "{} steps")
    period: int = feature(2, "period {}")
    own_layers: bool = feature(False, lambda own: "layers that only some ranks use" if own else "")


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training was given, what came out, and what should. values: of SHAPES. losses: of each rank."""

    values: list[Tensor]
    batches: Batches
    run: Observed[ReplicaReply]
    losses: list[list[float]]


def expected_of(models: list[Forked], lr: float, batches: Batches, period: int) -> list[list[float]]:
    """Trains the models, replica by replica; returns the losses of each."""
    losses: list[list[float]] = [[] for _ in models]
    optimizers, steps = [PlainSGD(model.parameters(), lr) for model in models], len(batches[0])
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inputs, targets = batches[rank][step]
            optimizer.zero_grad()
            loss = loss_of(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses[rank].append(loss.item())
        if (step + 1) % period == 0 or step + 1 == steps:
            with torch.no_grad():
                for replicas in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack(replicas).mean(0)
                    for each in replicas:
                        each.copy_(mean)
    return losses


def own(tried: Tried[Local]) -> Finding:
    """Passes if buffers, frozen parameters and the optimizer are each rank's own."""
    for rank, reply in enumerate(tried.seen.run.results):
        samples = sum(len(inputs) for inputs, _ in tried.seen.batches[rank])
        if changed := reply.kept(tried.seen.values, samples):
            return Finding(False, f"on rank {rank} {changed}.")
        if reply.taken != tried.case.features.steps:
            return Finding(False, f"on rank {rank} the optimizer made {reply.taken} steps.")
    return Finding(True, "Buffers and frozen parameters are what they were.")


def losses(tried: Tried[Local]) -> Finding:
    """Passes if each rank returned the loss of each of its steps."""
    for rank, (reply, expected) in enumerate(zip(tried.seen.run.results, tried.seen.losses, strict=True)):
        returned, what = reply.returned, f"what rank {rank} returns"
        if not isinstance(returned, list) or len(returned) != len(expected):
            return Finding(False, f"{what} is {compare.shown(returned)}; expected {len(expected)} floats.")
        near = (compare.near(*pair, what, rtol=1e-4) for pair in zip(returned, expected, strict=True))
        if not (finding := compare.first_failure([Finding(True, what), *near])).passed:
            return finding
    return Finding(True, "Each rank returns the loss of each of its steps.")


def calls(tried: Tried[Local]) -> Finding:
    """Passes if every rank calls all_reduce once a period, with all its trainable numbers."""
    times, nbytes = ceil(tried.case.features.steps / tried.case.features.period), 4 * TRAINED
    finding = each_rank_calls([tried.seen.run], ["all_reduce"] * times, "")
    if not finding.passed:
        return finding
    for event in tried.seen.run.communication(0):
        if event.nbytes != nbytes:
            text = f"rank 0 gives all_reduce {event.nbytes} bytes; expected {nbytes}."
            return Finding(False, text, Kind.TOO_MUCH if event.nbytes > nbytes else Kind.OTHER)
    return Finding(True, f"each rank calls all_reduce {times} times, with {nbytes} bytes.")


_ANY_PERIOD = ("any period, any number of ranks",)


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
            + both(ranks=2, steps=5, period=1)
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
            "Frozen parameters keep their numbers, each rank its buffers and its optimizer's state. (torchft "
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
    values = [rng.normal(*shape) for shape in SHAPES]
    branches = [rank % 2 if local.own_layers else 0 for rank in range(local.ranks)]
    batches = [
        [(rng.normal(size, WIDTH), rng.normal(size, WIDTH)) for _ in range(local.steps)]
        for size in range(2, 2 + local.ranks)
    ]
    lr = 0.01 * rng.integer(2, 9)
    given = values, per_rank(branches), per_rank(batches), lr, local.period
    run = answer.launch(drivers.local_sgd, *given, ranks=local.ranks)
    models = [Forked(values, branch) for branch in branches]
    wanted_losses = expected_of(models, lr, batches, local.period)
    wanted = copies_of(models[0].parameters())
    right = (
        compare.close(seen, each, f"parameter {position} on rank {rank}", 1e-4, 1e-5)
        for rank, reply in enumerate(run.results)
        for position, (seen, each) in enumerate(compare.side_by_side(reply.parameters, wanted))
        if position not in FROZEN
    )
    return compare.first_failure(right), Trained(values, batches, run, wanted_losses)
