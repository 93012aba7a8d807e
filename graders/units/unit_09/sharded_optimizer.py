"""The grader of `ShardedOptimizer`."""

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.kit import Criterion, Rng
from graders.units.in_one_launch import in_one_launch
from graders.units.one_by_one import look
from graders.units.unit_09.drivers import optimizers as drivers
from graders.units.unit_09.optimizer_steps import (
    CHANGED,
    DTYPES,
    FEW,
    FROZEN,
    GAPS,
    MISSING,
    OWN,
    Setting,
    Steps,
)


@in_one_launch(
    base=Setting(),
    driver=drivers.optimizer_steps,
    name="ShardedOptimizer",
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "the first step",
            5,
            "Every rank gives its part of the mean gradient to optimizer_class, and then asks for the other "
            "parts of the parameters, to write them there, into the memory that they have: copy_, not .data.",
        ),
        Criterion(
            "every step",
            3,
            "The second step goes on from the first: the optimizer is made once, and keeps its own shard. "
            "step() leaves every .grad as it is.",
            vary=vary(steps=(2,)),
        ),
        Criterion(
            "groups and their options",
            2,
            "One shard a group, with its options, in dicts of your own. param_groups are those of the "
            "optimizer that you made: who changes an option there changes its steps.",
            needs=("every step",),
            vary=vary(groups=(OWN,)) + both(groups=CHANGED, steps=2),
        ),
        Criterion(
            "any ranks and parameters",
            1,
            "A gradient that is None is zeros; what needs none stays as it is. Each group has its dtype, and "
            "a rank's part may be nothing but padding. (ZeroRedundancyOptimizer takes one dtype in all.)",
            vary=tuple({"steps": 2, **odd} for odd in vary(ranks=(1, 3), odd=(FROZEN, MISSING, GAPS)))
            + both(odd=FEW, ranks=4, steps=2)
            + both(odd=DTYPES, groups=OWN),
        ),
        Criterion(
            "zero_grad", 1, "Set the .grad of all parameters that were given to None.", how=look("zero_grad")
        ),
        Criterion(
            "a part of the state",
            3,
            "Give optimizer_class one parameter a group, this rank's part of the flat tensor. "
            "(ZeroRedundancyOptimizer deals out whole parameters: a rank with a large one has more to keep.)",
            needs=("every step",),
            how=look("a part of the state"),
        ),
        Criterion(
            "nothing else is kept",
            1,
            "Nobody refers to flat tensors of whole groups when __init__ or step() is over. A view keeps the "
            "whole tensor alive: clone it.",
            needs=("a part of the state",),
            vary=both(deep=True, steps=2, groups=OWN, ranks=4),
            how=look("nothing else is kept"),
        ),
        Criterion(
            "calls",
            2,
            "For each group one reduce-scatter of the gradients and one all-gather of the parameters: "
            "together the bytes of an all-reduce. (ZeroRedundancyOptimizer wants gradients that are averaged "
            "already, and broadcasts each parameter: half as much again.)",
            how=look("calls"),
        ),
    ),
    hints=(
        "Which gradients must a rank have to update its part, if Adam treats each number by itself?",
        "What can optimizer_class be given in place of the parameters? One nn.Parameter a group, with this "
        "rank's part of their numbers: flat(...).view(ranks, -1)[rank].clone().",
        "In step(): flat gradients, a reduce-scatter into the shard's .grad, a step, an all-gather of the "
        "shard, and unflat(...) to copy from.",
    ),
    possible=lambda case: not case.groups or case.deep or (case.ranks == 2 and case.odd in ("", DTYPES)),
)
def sharded_optimizer(rng: Rng, case: Setting) -> Steps:
    """Parameters, and gradients of each rank and step."""
    groups: list[tuple[list[int], dict[str, float]]] = []
    if case.groups:
        groups = [([0], {"lr": 0.3}), ([2, 1] if len(case.shapes) > 2 else [1], {"momentum": 0.7})]
    double = {number for own, _ in groups[1:] for number in own} if case.odd == DTYPES else set()
    kinds = [torch.float64 if number in double else torch.float32 for number in range(len(case.shapes))]
    described = [*zip(case.shapes, kinds, strict=True)]
    values = [rng.normal(*shape, dtype=kind) for shape, kind in described]
    gradients: list[list[list[Tensor | None]]] = [
        [[4 * rng.normal(*shape, dtype=kind) for shape, kind in described] for _ in range(case.steps)]
        for _ in range(case.ranks)
    ]
    if case.odd == MISSING:
        # One that no rank has, and one that all have but the first.
        for rank, own in enumerate(gradients):
            own[0][1] = None
            own[-1][0] = own[-1][0] if rank else None
    later = (
        [{"lr": rng.integer(3, 6) / 20}, {"momentum": 0.2, "decay": 0.4}] if case.groups == CHANGED else []
    )
    return Steps(case, values, groups, gradients, later)
