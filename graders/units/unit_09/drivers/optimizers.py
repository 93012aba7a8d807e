"""The driver of optimizers of which each rank has a part."""

from functools import partial
from typing import Any

from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.drivers import between_marks
from graders.units.models import copies_of, gradients_of
from graders.units.optimizers import PlainSGD

Stepped = tuple[list[list[Tensor]], list[str], int]
"""The parameters after each step; what is not as it should be besides; and how many numbers the optimizers
that the answer made keep for their parameters.
"""

OPTIONS = {"lr": 0.1, "decay": 0.1}
GROUPS = (([0], {"lr": 0.3}), ([2, 1], {"momentum": 0.7}))
"""The numbers of the parameters of two groups, and options of their own,"""
LATER = ({"lr": 0.2}, {"momentum": 0.2, "decay": 0.4})
"""and those that they have from the second step on."""


def optimizer_steps(answer: AnswerFunction, cases: list[list[PlainData]]) -> list[Stepped]:
    """What becomes of the steps of each case, see `_steps`."""
    return between_marks(partial(_steps, answer), cases)


def _steps(
    answer: AnswerFunction,
    values: list[Tensor],
    frozen: list[int],
    groups: bool,
    gradients: list[list[Tensor | None]],
) -> Stepped:
    """Steps of the answer with `PlainSGD`, one a list of gradients. values: of the parameters.

    frozen: numbers of some. groups: whether there are two; else parameters come as those of a model do.
    """
    model = nn.ParameterList(nn.Parameter(each.clone(), n not in frozen) for n, each in enumerate(values))
    # Whoever refers to a parameter's memory sees what is written there.
    seen_by_others = [each.detach() for each in model]
    made: list[PlainSGD] = []

    class Noted(PlainSGD):
        def __init__(self, *arguments: Any, **given: Any) -> None:
            super().__init__(*arguments, **given)
            made.append(self)

    described = [{"params": [model[number] for number in own], **more} for own, more in GROUPS]
    before = [dict(each) for each in described]
    optimizer = answer([*described] if groups else iter(list(model)), Noted, **OPTIONS)
    changed = set() if described == before else {"a dict of the groups"}
    seen = []
    for number, of_step in enumerate(gradients):
        for parameter, gradient in zip(model, of_step, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        mark("step begins")
        optimizer.step()
        mark("step done")
        if number + 1 == len(gradients):
            mark("over")
        seen.append(copies_of(seen_by_others))
        if not all(map(_same, gradients_of(model), of_step)):
            changed.add("a .grad, by step()")
        if frozen != [n for n, each in enumerate(model) if not each.requires_grad]:
            changed.add("what needs a gradient")
        for group, more in zip(optimizer.param_groups, LATER if groups else (), strict=False):
            group.update(more)
    optimizer.zero_grad()
    if any(each.grad is not None for n, each in enumerate(model) if n not in frozen):
        changed.add("nothing by zero_grad(), after which there is a .grad")
    kept = [each for one in made for state in one.state.values() for each in state.values()]
    return seen, sorted(changed), sum(each.numel() for each in kept if isinstance(each, Tensor))


def _same(seen: Tensor | None, given: Tensor | None) -> bool:
    return seen is given if seen is None or given is None else seen.equal(given)
