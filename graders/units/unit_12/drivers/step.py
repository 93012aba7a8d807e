"""Drivers of unit 12: a step of training on a mesh with three axes."""

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from course_lib.models import TransformerConfig
from course_lib.training.mesh_transformer import AXES, MeshTransformer
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.models import copies_of

Batch = list[tuple[Tensor, Tensor]]
"""Of each micro-batch the tokens [B, T] and the targets [B, T]."""


@dataclass(frozen=True, slots=True)
class StepReply(DriverReply):
    """loss: what the answer returned on this rank, and whether it is detached. gradients: of parameters by
    name. changed: what is not as it was.
    """

    loss: PlainData
    detached: bool
    gradients: dict[str, Tensor | None]
    changed: list[str]


def stepped(
    answer: AnswerFunction,
    shape: tuple[int, int, int],
    sizes: dict[str, int],
    tied: bool,
    batch: Batch,
) -> StepReply:
    """A step for the batch of this rank's replica. shape: of the mesh."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    model = MeshTransformer(TransformerConfig(**sizes, tied=tied), mesh)
    named = dict(model.named_parameters())
    kept: dict[str, list[Tensor]] = {"a parameter": [*named.values()], "the batch": [*chain(*batch)]}
    before = {what: copies_of(tensors) for what, tensors in kept.items()}
    loss = answer(model, batch, mesh)
    # A functional collective's result is waited for when it is used: it is copied.
    gradients = {name: None if each.grad is None else each.grad.clone() for name, each in named.items()}
    changed = [what for what in kept if not all(map(torch.equal, kept[what], before[what]))]
    detached = not (isinstance(loss, Tensor) and loss.requires_grad)
    return StepReply(loss.detach() if isinstance(loss, Tensor) else loss, detached, gradients, changed)


def devices(
    answer: AnswerFunction, shape: tuple[int, int, int], sizes: dict[str, int], samples: list[int]
) -> list[str]:
    """Of the loss and of gradients, after a step of a tied model whose tensors have no data, with
    micro-batches of so many samples.
    """
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    model = MeshTransformer(TransformerConfig(**sizes, tied=True), mesh, device="meta")
    tokens = [torch.empty(size, sizes["context"], dtype=torch.int64, device="meta") for size in samples]
    loss = answer(model, [(each, each.clone()) for each in tokens], mesh)
    made = [loss, *(each.grad for each in model.parameters())]
    return [each.device.type if isinstance(each, Tensor) else type(each).__name__ for each in made]
