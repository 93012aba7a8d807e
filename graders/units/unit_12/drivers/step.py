"""Drivers of unit 12: one step of training on a mesh with three axes."""

from dataclasses import dataclass

from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from course_lib.models import TransformerConfig
from course_lib.training.mesh_transformer import AXES, MeshTransformer
from graders.grading.answer import AnswerFunction, DriverReply, PlainData

Batch = list[tuple[Tensor, Tensor]]
"""Of each micro-batch the tokens [B, T] and the targets [B, T]."""


@dataclass(frozen=True, slots=True)
class StepReply(DriverReply):
    """loss: what the answer returned on this rank. gradients: of this rank's parameters, by name. changed:
    names of parameters with other numbers than before. batch: afterwards.
    """

    loss: PlainData
    gradients: dict[str, Tensor | None]
    changed: list[str]
    batch: Batch


def config_of(sizes: dict[str, int], tied: bool) -> TransformerConfig:
    """Of a small model."""
    return TransformerConfig(**sizes, tied=tied)


def stepped(
    answer: AnswerFunction, shape: tuple[int, int, int], sizes: dict[str, int], tied: bool, batch: Batch
) -> StepReply:
    """A step on a mesh of this shape, with the samples of this rank's replica."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    model = MeshTransformer(config_of(sizes, tied), mesh)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    loss = answer(model, batch, mesh)
    changed = [name for name, parameter in model.named_parameters() if not parameter.equal(before[name])]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return StepReply(loss, gradients, changed, batch)
