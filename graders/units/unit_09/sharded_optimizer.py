"""The grader of `ShardedOptimizer`."""

from graders.grading.cases import both, vary
from graders.grading.kit import Criterion, Rng
from graders.units.in_one_launch import in_one_launch
from graders.units.one_by_one import look
from graders.units.unit_09.drivers import optimizers as drivers
from graders.units.unit_09.optimizer_steps import FROZEN, MISSING, Setting, Steps


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
            4,
            "The second step goes on from the first: the optimizer is made once, and keeps its own shard. "
            "step() leaves every .grad as it is; zero_grad() sets all of them to None.",
            vary=vary(steps=(2,)),
        ),
        Criterion(
            "groups and their options",
            2,
            "One shard a group, with its options, in dicts of your own. param_groups are those of the "
            "optimizer that you made: who changes an option there changes its steps.",
            needs=("every step",),
            vary=both(groups=True, steps=2),
        ),
        Criterion(
            "any ranks and parameters",
            1,
            "A gradient that is None is zeros; what needs none stays as it is.",
            vary=tuple({"steps": 2, **odd} for odd in vary(ranks=(1, 3), odd=(FROZEN, MISSING))),
        ),
        Criterion(
            "a part of the state",
            4,
            "Give optimizer_class one parameter a group, this rank's part of the flat tensor, and refer to "
            "no flat tensor when __init__ or step() is over. A view keeps the whole one alive: clone it. "
            "(ZeroRedundancyOptimizer deals out whole parameters: a rank with a large one has more to keep.)",
            needs=("every step",),
            vary=both(deep=True, steps=2, groups=True, ranks=4),
            how=look("a part of the state"),
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
    possible=lambda case: not case.groups or case.deep or (case.ranks == 2 and not case.odd),
)
def sharded_optimizer(rng: Rng, case: Setting) -> Steps:
    """Parameters, and gradients of each rank and step."""
    return Steps.draw(rng, case)
