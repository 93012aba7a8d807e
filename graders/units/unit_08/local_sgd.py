"""The grader of `local_sgd`."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from graders.grading.cases import both
from graders.grading.communication import each_rank_calls, payload_of
from graders.grading.expected import same
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare, per_rank
from graders.units.models import copies_of
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.optimizers import PlainSGD
from graders.units.unit_08 import drivers
from graders.units.unit_08.on_replicas import moved, stayed
from graders.units.unit_08.replicas import SHAPES, TRAINED, WIDTH, Forked, ReplicaReply, loss_of

Batches = list[list[tuple[Tensor, Tensor]]]
"""For each rank and step, inputs and targets [B, WIDTH]."""
ANY, OWN, SOME = (
    "any period, any number of ranks",
    "what stays a rank's own",
    "layers that only some ranks train",
)


@dataclass(frozen=True, slots=True)
class Local:
    """own_layers: ranks use one of two branches, and only some have gradients there."""

    ranks: int = feature(3, lambda ranks: compare.counted(ranks, "rank"))
    steps: int = feature(6, lambda steps: compare.counted(steps, "step"))
    period: int = feature(2, "period {}")
    own_layers: bool = feature(False, lambda own: "layers that only some ranks use" if own else "")


def trained(models: list[Forked], lr: float, batches: Batches, period: int) -> list[list[float]]:
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


def calls(run: Observed[ReplicaReply], local: Local) -> Finding:
    """Passes if every rank calls all_reduce once a period, with all its trainable numbers."""
    times = ceil(local.steps / local.period)
    numbers = payload_of(run, "all_reduce", 4 * TRAINED * times)
    return compare.first_failure([each_rank_calls([run], ["all_reduce"] * times, numbers.seen), numbers])


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
            ANY,
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
            SOME,
            1,
            "A parameter that has no gradient on this rank may have changed on another: it is averaged too. "
            "(PeriodicModelAverager, and PostLocalSGDOptimizer with it, leaves it out.)",
            needs=(ANY,),
            vary=both(steps=5, own_layers=True),
        ),
        Criterion(
            OWN,
            1,
            "Frozen parameters keep their numbers, each rank its buffers and its optimizer's state. (torchft "
            "averages frozen parameters too.)",
            needs=(ANY,),
            how=look(OWN),
        ),
        Criterion(
            "losses", 1, "One float a step, of this rank's own batch.", needs=(ANY,), how=look("losses")
        ),
        Criterion(
            "all-reduces",
            3,
            "One all_reduce of all trainable parameters laid end to end, after each `period` steps and once "
            "for what is left; none where nothing has changed since the last.",
            needs=(SOME, OWN),
            how=look("all-reduces"),
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
def local_sgd(answer: Answer, local: Local, rng: Rng) -> tuple[Finding, Looks]:
    """Every rank's weights at the end, beside the same replicas trained in one process."""
    values = [rng.normal(*shape) for shape in SHAPES]
    branches = [rank % 2 if local.own_layers else 0 for rank in range(local.ranks)]
    sizes = range(2, 2 + local.ranks)
    batches = [
        [(rng.normal(size, WIDTH), rng.normal(size, WIDTH)) for _ in range(local.steps)] for size in sizes
    ]
    lr = 0.01 * rng.integer(2, 9)
    given = values, per_rank(branches), per_rank(batches), lr, local.period
    run = answer.launch(drivers.local_sgd, *given, ranks=local.ranks)
    models = [Forked(values, branch) for branch in branches]
    losses = trained(models, lr, batches, local.period)

    def own() -> Finding:
        kept = stayed(run.results, values, [size * local.steps for size in sizes])
        taken = [each.taken for each in run.results]
        return compare.first_failure(
            [kept, compare.equal(taken, [local.steps] * local.ranks, "steps of each optimizer")]
        )

    return moved(run.results, copies_of(models[0].parameters())), {
        OWN: own,
        "losses": lambda: same([each.returned for each in run.results], losses, "what ranks return", 1e-4),
        "all-reduces": lambda: calls(run, local),
    }
