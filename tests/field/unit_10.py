"""Answers to exercises of unit 10."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd

from tests.field.answers import field
from tests.field.meshes import group_or_all

UNIT = "10_experts"


@field(UNIT, "top_k_gate", "torch.topk", lacks=["ties", "any logits"])
def softmax_and_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    weights, experts = torch.softmax(logits, 1, dtype=torch.float32).topk(k)
    return (weights / weights.sum(1, keepdim=True)).to(logits.dtype), experts


@field(UNIT, "dispatch", "all_to_all_single_autograd")
def sent_to_experts(
    x_RD: Tensor, counts: Tensor, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    ranks = dist.get_world_size(group_or_all(group))
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group_or_all(group))
    received = received.view(ranks, -1)
    coming, going = received.sum(1).tolist(), counts.view(ranks, -1).sum(1).tolist()
    return all_to_all_single_autograd(x_RD, coming, going, group_or_all(group)), received


@field(UNIT, "combine", "all_to_all_single_autograd")
def sent_back(
    y_TD: Tensor,
    plan: tuple[Tensor, Tensor],
    received: Tensor,
    weights: Tensor,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    order, counts = plan
    coming = counts.view(len(received), -1).sum(1).tolist()
    y_RD = all_to_all_single_autograd(y_TD, coming, received.sum(1).tolist(), group_or_all(group))
    weighted = y_RD * weights.flatten()[order][:, None]
    nothing = torch.zeros(len(weights), y_TD.shape[1], dtype=y_TD.dtype)
    return nothing.index_add(0, order // weights.shape[1], weighted)
