"""Drivers of unit 12: gradients that are averaged, and measured, on a mesh of ranks."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.groups import own_group
from graders.units.models import transposed

AXES = ("data", "pipeline", "tensor")

Described = tuple[Tensor, bool, bool, bool]
"""Of a parameter: its gradient, whether it has one, whether it is cut along tensor, whether it is shared."""


@dataclass(frozen=True, slots=True)
class AverageReply(DriverReply):
    """result: what the answer returned on this rank. again: when called once more, with other gradients.
    first: what was returned first, as it is then. gradients: those of the first call, afterwards. new:
    whether what was returned first has memory of its own.
    """

    result: PlainData
    again: PlainData
    first: PlainData
    gradients: list[Tensor]
    new: bool


@dataclass(frozen=True, slots=True)
class MeshNormReply(DriverReply):
    """result: what the answer returned on this rank. gradients: afterwards. kept: whether they are the very
    tensors that were given, and the parameters and their attributes as they were.
    """

    result: PlainData
    gradients: list[Tensor | None]
    kept: bool


def averaged(
    answer: AnswerFunction,
    gradients: list[Tensor],
    others: list[Tensor],
    within: list[list[int]],
    across: list[list[int]],
    gaps: bool,
) -> AverageReply:
    """What the answer makes of gradients of any shapes, then of others of the same. within, across: the ranks
    of all groups of a kind. gaps: the gradients stand transposed in memory.
    """
    groups = own_group(within), own_group(across)
    given, more = ([transposed(x) if gaps else x.clone() for x in own] for own in (gradients, others))
    _fill_free_memory(gradients)
    mark("first")
    result = answer(given, *groups)
    kept = result.clone() if isinstance(result, Tensor) else result
    new = not any(_shares_memory(result, each) for each in given)
    mark("again")
    again = answer(more, *groups)
    return AverageReply(kept, again, result, given, new)


def _shares_memory(result: PlainData, gradient: Tensor) -> bool:
    """Whether a result that is a plain tensor lies where a gradient does."""
    if type(result) is not Tensor or not gradient.numel():
        return False
    return result.untyped_storage().data_ptr() == gradient.untyped_storage().data_ptr()


def _fill_free_memory(like: list[Tensor]) -> None:
    """Leave sevens where new tensors are made without being filled."""
    numel = sum(each.numel() for each in like)
    made = [like[0].new_full((length,), 7) for length in range(1, 2 * numel + 8) for _ in range(3)]
    del made


def normed(
    answer: AnswerFunction, shape: tuple[int, int, int], order: list[int], parameters: list[Described]
) -> MeshNormReply:
    """The norm of what a mesh of this shape, data x pipeline x tensor, has; of this rank the parameters are
    described. order: the ranks as they stand in the mesh.
    """
    mesh = DeviceMesh("cpu", torch.tensor(order).view(shape), mesh_dim_names=AXES)
    made = [_parameter(*each) for each in parameters]
    given = [each.grad for each in made]
    result = answer(_once(made), mesh)
    kept = all(each.grad is gradient for each, gradient in zip(made, given, strict=True))
    kept = kept and all(map(_as_made, made, parameters))
    return MeshNormReply(result, [each.grad for each in made], kept)


def _parameter(gradient: Tensor, has_one: bool, cut: bool, shared: bool) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone() if has_one else None
    parameter.tensor_model_parallel = cut  # type: ignore[attr-defined]
    parameter.shared = shared  # type: ignore[attr-defined]
    return parameter


def _as_made(parameter: Any, described: Described) -> bool:
    _, _, cut, shared = described
    return not parameter.any() and (parameter.tensor_model_parallel, parameter.shared) == (cut, shared)


def _once(parameters: list[nn.Parameter]) -> Iterable[nn.Parameter]:
    """As model.parameters() gives them: they can be gone through once."""
    yield from parameters
