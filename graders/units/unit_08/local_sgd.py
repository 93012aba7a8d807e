"""The grader of `local_sgd`."""

import copy

import torch
from torch import Tensor

from graders.grading.cases import both
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare, per_rank
from graders.units.one_by_one import one_by_one
from graders.units.unit_08 import drivers
from graders.units.unit_08.local_training import TOLERANCES, Local, Trained, calls, expected_of, losses, own
from graders.units.unit_08.replicas import FROZEN, SHAPES, WIDTH, Forked, in_two_groups

_ANY_PERIOD = ("any period, any number of ranks",)


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
