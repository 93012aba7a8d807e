"""Answers to exercises of unit 04."""

import torch
from torch import Tensor

from tests.field.answers import field

UNIT = "04_horovod"


@field(UNIT, "warmup_lr", "LinearLR", lacks=["no warm-up"])
def linear_lr(step: int, warmup_steps: int, base_lr: float, size: int) -> float:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=base_lr * size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / size, total_iters=warmup_steps)
    for _ in range(step):
        optimizer.step()
        schedule.step()
    return float(schedule.get_last_lr()[0])


@field(UNIT, "fuse", "_flatten_dense_tensors", lacks=["memory of its own"])
def flatten_dense_tensors(tensors: list[Tensor]) -> Tensor:
    return torch._utils._flatten_dense_tensors([each.detach() for each in tensors])


@field(UNIT, "fuse", "parameters_to_vector", lacks=["any layout"])
def parameters_to_vector(tensors: list[Tensor]) -> Tensor:
    return torch.nn.utils.parameters_to_vector(tensors).detach()


@field(UNIT, "unfuse", "_unflatten_dense_tensors", lacks=["what does not fit"])
def unflatten_dense_tensors(flat: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    like = [torch.empty(shape, device="meta") for shape in shapes]
    return list(torch._utils._unflatten_dense_tensors(flat, like))
