"""Drivers of unit 02: replicas begin alike and stay alike."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of, load_values, state_of, transposed
from graders.units.unit_02.models import Normed, chain_of, numbers_in


def broadcast(answer: AnswerFunction, cases: list[list[PlainData]], *how: Any) -> list[Called]:
    """What a broadcast leaves of this rank's models: of each its state by names; then, as arguments, which
    parameters are trainable, and whether all tensors are those that they were, in the same memory.

    cases: the values of a `Normed`'s state. how: what else `graders.units.ranks.drivers.calls` is told; there
    are no groups.
    """
    told = []
    for (values,), named, layout in in_turn(cases, *how):
        model = normed(values, layout)
        before = _places(state_of(model))
        answer(model, **named)
        names = [*dict(model.named_parameters()), *dict(model.named_buffers())]
        state = dict(zip(names, copies_of(state_of(model)), strict=True))
        trainable = [parameter.requires_grad for parameter in model.parameters()]
        told.append(Called(state, None, [trainable, before == _places(state_of(model))]))
    return told


def autograd_of(answer: AnswerFunction, values: list[Tensor]) -> list[bool]:
    """Whether autograd saw a broadcast of a `Normed` with these values, and whether it records afterwards.

    Simulated ranks run what PyTorch has above the group. Below it, on processes, autograd notes the operation
    and warns in the next backward.
    """
    seen: list[bool] = []
    group: Any = dist.group.WORLD
    broadcast = group.broadcast

    def noted(tensors: list[Tensor], *options: Any) -> Any:
        seen.extend(torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors)
        return broadcast(tensors, *options)

    group.broadcast = noted
    with torch.enable_grad():
        answer(normed(values, "contiguous"), 0)
        return [any(seen), torch.is_grad_enabled()]


def normed(values: list[Tensor], layout: str) -> Normed:
    """layout: of the first weight, and of a buffer."""
    model = Normed()
    if layout == "transposed":
        for tensor in (model.first.weight, model.positions):
            tensor.data = transposed(tensor.data)
    load_values(state_of(model), values)
    return model


def average(answer: AnswerFunction, cases: list[list[PlainData]], *how: Any) -> list[Called]:
    """What averaging leaves of this rank's models: of each the gradients by names; then, as arguments, its
    parameters, and whether the gradients are the tensors that they were, in the same memory.

    cases: values, see `chain_of`; gradients, of the same shapes, those of frozen ones too; numbers of the
    parameters that are frozen. how: as above; layouts are those of gradients.
    """
    told = []
    for (values, gradients, frozen), _, layout in in_turn(cases, *how):
        model = chain_of(values)
        parameters = list(model.parameters())
        for number in frozen:
            parameters[number].requires_grad_(False)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            turned = layout == "transposed" and gradient is not None
            parameter.grad = transposed(gradient) if turned else gradient
        given = [parameter for parameter in parameters if parameter.grad is not None]
        before = _places(parameter.grad for parameter in given)
        answer(model)
        kept = before == _places(parameter.grad for parameter in given)
        left = {
            f"the gradient of {name}{'' if p.requires_grad else ', which is frozen,'}": (
                None if p.grad is None else p.grad.clone()
            )
            for name, p in model.named_parameters()
        }
        told.append(Called(left, None, [copies_of(parameters), kept]))
    return told


def in_turn(
    cases: Sequence[Any], options: Sequence[Any], layouts: Sequence[str], members: Any, meet: Sequence[bool]
) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """Each case, before which all ranks meet if they are to."""
    for case, named, layout, together in zip(cases, options, layouts, meet, strict=True):
        if together:
            dist.barrier()
        yield case, named, layout


def _places(tensors: Any) -> list[tuple[int, int]]:
    """Which objects they are, and where their memory begins; 0 for what is none."""
    return [(id(each), each.data_ptr() if isinstance(each, Tensor) else 0) for each in tensors]


def cut(answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str]) -> list[Called]:
    """How the answer puts the parameters of models into buckets, told by their numbers.

    calls: values, see `chain_of`; numbers of the frozen parameters; the bound on a bucket's bytes.
    """
    told = []
    for values, frozen, limit in calls:
        model = chain_of(values)
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number not in frozen)
        told.append(Called(numbers_in(answer(model, limit), model), None, []))
    return told
