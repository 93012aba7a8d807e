"""The driver of optimizers of which each rank has a part."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.drivers import between_marks
from graders.units.models import copies_of, gradients_of
from graders.units.optimizers import PlainSGD


@dataclass(frozen=True, slots=True)
class OptimizerReply(DriverReply):
    """parameters: after each step. changed: what is not as it should be besides. numbers: how many the
    optimizers that the answer made keep for their parameters.
    """

    parameters: list[list[Tensor]]
    changed: list[str]
    numbers: int


def optimizer_steps(answer: AnswerFunction, cases: list[list[PlainData]]) -> list[OptimizerReply]:
    """What becomes of the steps of each case, see `_steps`."""
    return between_marks(partial(_steps, answer), cases)


def _steps(
    answer: AnswerFunction,
    values: list[Tensor],
    frozen: list[int],
    groups: list[tuple[list[int], dict[str, float]]],
    options: dict[str, float],
    gradients: list[list[Tensor | None]],
    later: list[dict[str, float]],
) -> OptimizerReply:
    """Steps of the answer with `PlainSGD`, one a list of gradients. values: of the parameters.

    frozen: numbers of some. groups: the numbers and options of each; none: parameters come as those of a
    model do. later: options of each group from the second step on.
    """
    model = nn.ParameterList(
        nn.Parameter(each.clone(), number not in frozen) for number, each in enumerate(values)
    )
    # Whoever refers to a parameter's memory sees what is written there.
    seen_by_others = [each.detach() for each in model]
    made = []

    class Noted(PlainSGD):
        def __init__(self, *arguments: Any, **given: Any) -> None:
            super().__init__(*arguments, **given)
            made.append(self)

    described = [{"params": [model[number] for number in own], **more} for own, more in groups]
    before = [dict(each) for each in described]
    optimizer = answer([*described] or iter(list(model)), Noted, **options)
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
        for group, more in zip(optimizer.param_groups, later, strict=False):
            group.update(more)
    optimizer.zero_grad()
    if any(each.grad is not None for number, each in enumerate(model) if number not in frozen):
        changed.add("nothing by zero_grad(), after which there is a .grad")
    return OptimizerReply(seen, sorted(changed), sum(map(_numbers, made)))


def _numbers(optimizer: PlainSGD) -> int:
    """How many numbers it keeps for its parameters."""
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.numel() for value in kept if isinstance(value, Tensor))


def _same(seen: Tensor | None, given: Tensor | None) -> bool:
    return seen is given if seen is None or given is None else seen.equal(given)
