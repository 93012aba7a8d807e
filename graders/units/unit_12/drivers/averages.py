"""Drivers of unit 12: gradients that are averaged, and measured, on a mesh of ranks."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from course_lib.training.mesh_transformer import AXES
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.groups import own_group
from graders.units.ranks import drivers


def averaged(answer: AnswerFunction, *given: Any) -> list[Called]:
    """What the answer makes of gradients, with the arguments of `graders.units.ranks.drivers.calls`."""

    def in_groups(gradients: list[Tensor], within: list[list[int]], across: list[list[int]]) -> Any:
        return answer(gradients, own_group(within), own_group(across))

    return drivers.calls(in_groups, *given)


def normed(answer: AnswerFunction, *given: Any) -> list[Called]:
    """The norm of what a mesh has, and the gradients afterwards; arguments as for `averaged`."""
    return drivers.calls(partial(_normed, answer), *given)


def _normed(
    answer: AnswerFunction, shape: tuple[int, int, int], held: list[tuple[Tensor, bool, bool, bool]]
) -> dict[str, PlainData]:
    """held: of each parameter its gradient, whether it has one, is cut along tensor, and is shared."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    parameters = []
    for gradient, has_one, cut, shared in held:
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient if has_one else None
        parameter.tensor_model_parallel = cut  # type: ignore[attr-defined]
        parameter.shared = shared  # type: ignore[attr-defined]
        parameters.append(parameter)
    # As model.parameters() gives them, they can be gone through once.
    norm = answer(iter(parameters), mesh)
    return {"the norm": norm, "gradients": [each.grad for each in parameters]}
