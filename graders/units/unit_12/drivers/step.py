"""Drivers of unit 12: a step of training on a mesh with three axes."""

from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from course_lib.models import TransformerConfig
from course_lib.training.mesh_transformer import AXES, MeshTransformer
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of
from graders.units.ranks import drivers

Batch = list[tuple[Tensor, Tensor]]
"""Of each micro-batch the tokens [B, T] and the targets [B, T]."""


def stepped(answer: AnswerFunction, *given: Any) -> list[Called]:
    """The step of each case, with the arguments of `graders.units.ranks.drivers.calls`."""
    return drivers.calls(partial(_stepped, answer), *given)


def _stepped(
    answer: AnswerFunction, shape: tuple[int, int, int], sizes: dict[str, int], tied: bool, batch: Batch
) -> dict[str, PlainData]:
    """What a step on a mesh of this shape leaves behind. batch: of this rank's replica."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    model = MeshTransformer(TransformerConfig(**sizes, tied=tied), mesh)
    named = dict(model.named_parameters())
    kept: dict[str, list[Tensor]] = {"a parameter": [*named.values()], "the batch": [*chain(*batch)]}
    before = {what: copies_of(tensors) for what, tensors in kept.items()}
    loss = answer(model, batch, mesh)
    return {
        "loss": loss.detach() if isinstance(loss, Tensor) else loss,
        "detached": not (isinstance(loss, Tensor) and loss.requires_grad),
        # A functional collective's result is waited for when it is used: it is copied.
        "gradients": {name: None if x.grad is None else x.grad.clone() for name, x in named.items()},
        "changed": [what for what in kept if not all(map(torch.equal, kept[what], before[what]))],
    }


def devices(
    answer: AnswerFunction, shape: tuple[int, int, int], sizes: dict[str, int], samples: list[int]
) -> list[str]:
    """Of loss and gradients after a step of a tied model without data. samples: of each micro-batch."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    model = MeshTransformer(TransformerConfig(**sizes, tied=True), mesh, device="meta")
    tokens = [torch.empty(size, sizes["context"], dtype=torch.int64, device="meta") for size in samples]
    loss = answer(model, [(each, each.clone()) for each in tokens], mesh)
    made = [loss, *(each.grad for each in model.parameters())]
    return [each.device.type if isinstance(each, Tensor) else type(each).__name__ for each in made]
