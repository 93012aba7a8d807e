"""The driver of optimizers of which each rank has a part."""

from functools import partial
from typing import Any

from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.drivers import between_marks
from graders.units.models import copies_of, transposed
from graders.units.optimizers import PlainSGD
from graders.units.unit_09.replies import OptimizerReply


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
    gaps: bool,
) -> OptimizerReply:
    """Steps of the answer with `PlainSGD`, one a list of gradients. values: of the parameters.

    frozen: numbers of some. groups: the numbers and options of each; none: parameters come as those of a
    model do. later: options of each group from the second step on. gaps: whether tensors stand transposed.
    """
    laid = transposed if gaps else Tensor.clone
    parameters = [nn.Parameter(laid(each), number not in frozen) for number, each in enumerate(values)]
    # Whoever refers to a parameter's memory sees what is written there.
    seen_by_others = [each.detach() for each in parameters]
    made = []

    class Noted(PlainSGD):
        def __init__(self, *arguments: Any, **given: Any) -> None:
            super().__init__(*arguments, **given)
            made.append(self)

    described = [{"params": [parameters[number] for number in own], **more} for own, more in groups]
    before = [dict(each) for each in described]
    optimizer = answer([*described] or iter(parameters), Noted, **options)
    changed = described != before
    seen, left = [], []
    for number, of_step in enumerate(gradients):
        given = [None if each is None else laid(each) for each in of_step]
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = gradient
        mark("step begins")
        optimizer.step()
        mark("step done")
        if number + 1 == len(gradients):
            mark("over")
        seen.append(copies_of(seen_by_others))
        left.append(all(map(_as_given, parameters, of_step)))
        changed |= frozen != [n for n, each in enumerate(parameters) if not each.requires_grad]
        for group, more in zip(optimizer.param_groups, later, strict=False):
            group.update(more)
    optimizer.zero_grad()
    cleared = all(each.grad is None for number, each in enumerate(parameters) if number not in frozen)
    return OptimizerReply(seen, left, changed, cleared, sum(map(_numbers, made)))


def _numbers(optimizer: PlainSGD) -> int:
    """How many numbers it keeps for its parameters."""
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.numel() for value in kept if isinstance(value, Tensor))


def _as_given(parameter: nn.Parameter, gradient: Tensor | None) -> bool:
    """Whether a parameter's .grad has the numbers of this gradient, or is None as it is."""
    if parameter.grad is None or gradient is None:
        return parameter.grad is gradient
    return parameter.grad.equal(gradient)
