"""Drivers of unit 12: steps of training on a mesh with three axes."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from course_lib import mark
from course_lib.models import TransformerConfig
from course_lib.training.mesh_transformer import AXES, MeshTransformer
from graders.grading.answer import AnswerFunction, DriverReply, PlainData

Batch = list[tuple[Tensor, Tensor]]
"""Of each micro-batch the tokens [B, T] and the targets [B, T]."""

STEP = "a step begins"
"""The mark before each step."""


@dataclass(frozen=True, slots=True)
class StepReply(DriverReply):
    """Of each step, losses: what the answer returned on this rank, and gradients: of the parameters that this
    rank had before, by name. detached: whether no loss requires a gradient. changed: names of parameters that
    are not as they were. batches: afterwards.
    """

    losses: list[PlainData]
    gradients: list[dict[str, Tensor | None]]
    detached: bool
    changed: list[str]
    batches: list[Batch]


def config_of(sizes: dict[str, int], tied: bool) -> TransformerConfig:
    """Of a small model."""
    return TransformerConfig(**sizes, tied=tied)


def _copy_of(gradient: Tensor | None) -> Tensor | None:
    """What a gradient holds, once it is there: a functional collective's is waited for when it is used."""
    return None if gradient is None else gradient.detach().clone()


def stepped(
    answer: AnswerFunction,
    mesh_of: tuple[tuple[int, int, int], list[int]],
    sizes: dict[str, int],
    tied: bool,
    batches: list[Batch],
) -> StepReply:
    """A step for each batch of this rank's replica, gradients cleared between. mesh_of: its shape, and the
    ranks as they stand in it.
    """
    shape, order = mesh_of
    mesh = DeviceMesh("cpu", torch.tensor(order).view(shape), mesh_dim_names=AXES)
    model = MeshTransformer(config_of(sizes, tied), mesh)
    own = dict(model.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in own.items()}
    losses, gradients, detached = [], [], True
    for batch in batches:
        mark(STEP)
        loss = answer(model, batch, mesh)
        detached &= not (isinstance(loss, Tensor) and loss.requires_grad)
        losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        gradients.append({name: _copy_of(each.grad) for name, each in own.items()})
        for parameter in own.values():
            parameter.grad = None
    left = dict(model.named_parameters())
    changed = [
        name
        for name in {**own, **left}
        if left.get(name) is not own.get(name)
        or not left[name].requires_grad
        or not left[name].equal(before[name])
    ]
    return StepReply(losses, gradients, detached, changed, batches)


@dataclass(frozen=True, slots=True)
class DeviceReply(DriverReply):
    """Devices: loss, of what the answer returned on this rank; gradients, of each parameter's."""

    loss: str
    gradients: list[str]


def stepped_without_data(
    answer: AnswerFunction, shape: tuple[int, int, int], sizes: dict[str, int], samples: list[int]
) -> DeviceReply:
    """A step of a tied model whose tensors have no data, with micro-batches of so many samples."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    model = MeshTransformer(config_of(sizes, tied=True), mesh, device="meta")
    tokens = [torch.empty(size, sizes["context"], dtype=torch.int64, device="meta") for size in samples]
    loss = answer(model, [(each, each.clone()) for each in tokens], mesh)
    return DeviceReply(_device_of(loss), [_device_of(each.grad) for each in model.parameters()])


def _device_of(given: PlainData) -> str:
    return given.device.type if isinstance(given, Tensor) else f"no tensor, but {type(given).__name__}"
