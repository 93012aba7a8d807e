"""Drivers of unit 12: gradients that are averaged, and measured, on a mesh of ranks."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.groups import own_group

AXES = ("data", "pipeline", "tensor")

Described = tuple[Tensor, bool, bool, bool]
"""Of a parameter: its gradient, whether it has one, whether it is cut along tensor, whether it is shared."""


@dataclass(frozen=True, slots=True)
class GradientsReply(DriverReply):
    """result: what the answer returned on this rank. gradients: afterwards. own: whether the result has
    memory of its own.
    """

    result: PlainData
    gradients: list[Tensor | None]
    own: bool


def averaged(
    answer: AnswerFunction, gradients: list[Tensor], within: list[list[int]], across: list[list[int]]
) -> GradientsReply:
    """What the answer makes of gradients. within, across: the ranks of all groups of a kind."""
    result = answer(gradients, own_group(within), own_group(across))
    used = {each.untyped_storage().data_ptr() for each in gradients if each.numel()}
    own = type(result) is not Tensor or result.untyped_storage().data_ptr() not in used
    return GradientsReply(result, [*gradients], own)


def normed(
    answer: AnswerFunction, shape: tuple[int, int, int], parameters: list[Described]
) -> GradientsReply:
    """The norm of what a mesh of this shape, data x pipeline x tensor, has; of this rank the parameters are
    described.
    """
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    made = [_parameter(*each) for each in parameters]
    return GradientsReply(answer(_once(made), mesh), [each.grad for each in made], own=True)


def _parameter(gradient: Tensor, has_one: bool, cut: bool, shared: bool) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient if has_one else None
    parameter.tensor_model_parallel = cut  # type: ignore[attr-defined]
    parameter.shared = shared  # type: ignore[attr-defined]
    return parameter


def _once(parameters: list[nn.Parameter]) -> Iterable[nn.Parameter]:
    """As model.parameters() gives them: they can be gone through once."""
    yield from parameters
