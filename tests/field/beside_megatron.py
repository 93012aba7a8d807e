"""Answers by Megatron-core, which stands beside the workbook: units 05, 06 and 10."""

import threading
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.training.pipeline.actions import Action, Backward, Forward
from tests.field.answers import field
from tests.field.meshes import group_or_all

UNIT, EXPERTS = "06_tensor_parallel", "10_experts"
LIBRARY = {"library": "Megatron", "beside": "megatron-core"}
Group = dist.ProcessGroup | None


def config(dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    from megatron.core import ModelParallelConfig

    return ModelParallelConfig(
        use_cpu_initialization=True, gradient_accumulation_fusion=False, params_dtype=dtype, **options
    )


def as_linear(weight: Tensor) -> None:
    """What nn.Linear draws."""
    nn.init.kaiming_uniform_(weight, a=5**0.5)


@field(UNIT, "f", **LIBRARY, lacks=["arguments unchanged"])
def copied_to_region(x: Tensor, group: Group = None) -> Tensor:
    from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region

    return copy_to_tensor_model_parallel_region(x, group_or_all(group))


@field(UNIT, "g", **LIBRARY, lacks=["arguments unchanged"])
def reduced_from_region(x: Tensor, group: Group = None) -> Tensor:
    from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region

    return reduce_from_tensor_model_parallel_region(x, group_or_all(group))


@field(UNIT, "gather_sequence", **LIBRARY)
def gathered_from_region(x_BTD: Tensor, group: Group = None) -> Tensor:
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

    # Its sequences lie along the first dimension.
    return gather_from_sequence_parallel_region(x_BTD.transpose(0, 1), group=group_or_all(group)).transpose(
        0, 1
    )


@field(UNIT, "scatter_sequence", **LIBRARY)
def scattered_to_region(x_BTD: Tensor, group: Group = None) -> Tensor:
    from megatron.core.tensor_parallel import reduce_scatter_to_sequence_parallel_region

    x_TBD = x_BTD.transpose(0, 1)
    return reduce_scatter_to_sequence_parallel_region(x_TBD, group=group_or_all(group)).transpose(0, 1)


LINEAR_LACKS = ["initial values", "widths that do not divide"]


@field(UNIT, "ColumnParallelLinear", **LIBRARY, lacks=LINEAR_LACKS)
def column_parallel(inputs: int, outputs: int, bias: bool = True, group: Group = None) -> nn.Module:
    from megatron.core.tensor_parallel import ColumnParallelLinear

    class Columns(ColumnParallelLinear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[0]

    told = {"config": config(), "init_method": as_linear, "tp_group": group_or_all(group)}
    return Columns(inputs, outputs, bias=bias, gather_output=False, **told)


@field(UNIT, "RowParallelLinear", **LIBRARY, lacks=LINEAR_LACKS)
def row_parallel(inputs: int, outputs: int, bias: bool = True, group: Group = None) -> nn.Module:
    from megatron.core.tensor_parallel import RowParallelLinear

    class Rows(RowParallelLinear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[0]

    told = {"config": config(), "init_method": as_linear, "tp_group": group_or_all(group)}
    return Rows(inputs, outputs, bias=bias, input_is_parallel=True, skip_bias_add=False, **told)


@field(UNIT, "VocabParallelEmbedding", **LIBRARY, lacks=["a vocabulary that does not divide"])
def vocab_parallel(embedding: nn.Embedding, group: Group = None) -> nn.Module:
    from megatron.core.tensor_parallel import VocabParallelEmbedding

    told = config(embedding.weight.dtype, perform_initialization=False)
    layer = VocabParallelEmbedding(
        *embedding.weight.shape, init_method=as_linear, config=told, tp_group=group_or_all(group)
    )
    with torch.no_grad():
        layer.weight.copy_(embedding.weight[layer.vocab_start_index : layer.vocab_end_index])
    return layer


own = threading.local()
"""Megatron-core knows one group of a process; here each rank is a thread."""


@field(
    UNIT,
    "vocab_parallel_cross_entropy",
    **LIBRARY,
    lacks=["arguments unchanged", "any dtype", "a vocabulary that does not divide"],
)
def cross_entropy(logits_shard: Tensor, target: Tensor, vocabulary: int, group: Group = None) -> Tensor:
    from megatron.core.tensor_parallel import cross_entropy as module

    own.group = group_or_all(group)
    for name, told in {
        "get_tensor_model_parallel_group": lambda: own.group,
        "get_tensor_model_parallel_rank": lambda: dist.get_rank(own.group),
        "get_tensor_model_parallel_world_size": lambda: dist.get_world_size(own.group),
    }.items():
        setattr(module, name, told)
    return module.vocab_parallel_cross_entropy(logits_shard, target)


@field(EXPERTS, "top_k_gate", **LIBRARY, lacks=["ties", "any logits"])
def router(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function

    weights_NE, chosen_NE = topk_routing_with_score_function(logits, k)
    # It marks them, in no order.
    experts = logits.masked_fill(~chosen_NE.bool(), -torch.inf).topk(k).indices
    return weights_NE.gather(1, experts), experts


@field(EXPERTS, "load_balancing_loss", **LIBRARY)
def switch_loss(probabilities: Tensor, experts: Tensor, group: Group = None) -> Tensor:
    from megatron.core.transformer.moe.moe_utils import switch_load_balancing_loss_func

    ranks, count = dist.get_world_size(group_or_all(group)), probabilities.shape[1]
    chosen = torch.bincount(experts.flatten(), minlength=count)
    dist.all_reduce(chosen, group=group_or_all(group))
    # Its gradients are summed over ranks afterwards, and ours averaged.
    return switch_load_balancing_loss_func(
        probabilities, chosen, ranks * len(experts), experts.shape[1], count, float(ranks)
    )


@field(EXPERTS, "dispatch_plan", **LIBRARY, lacks=["several choices", "capacity"])
def permuted(experts: Tensor, count: int, capacity: int | None = None) -> tuple[Tensor, Tensor]:
    from megatron.core.transformer.moe.moe_utils import permute

    chosen = torch.zeros(len(experts), count, dtype=torch.bool).scatter_(1, experts, True)
    numbers = torch.arange(experts.numel()).view(experts.shape)
    numbers_NE = torch.zeros(len(experts), count, dtype=torch.int64).scatter_(1, experts, numbers)
    _, order, _ = permute(torch.zeros(len(experts), 1), chosen, numbers_NE)
    assert order is not None
    return order, chosen.sum(0)


@field(EXPERTS, "dispatch", **LIBRARY)
def sent_to_experts(x_RD: Tensor, counts: Tensor, group: Group = None) -> tuple[Tensor, Tensor]:
    from megatron.core.tensor_parallel import all_to_all

    ranks = dist.get_world_size(group_or_all(group))
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group_or_all(group))
    received = received.view(ranks, -1)
    coming, going = received.sum(1).tolist(), counts.view(ranks, -1).sum(1).tolist()
    return all_to_all(group_or_all(group), x_RD, coming, going), received


@field(EXPERTS, "combine", **LIBRARY)
def sent_back(
    y_TD: Tensor, plan: tuple[Tensor, Tensor], received: Tensor, weights: Tensor, group: Group = None
) -> Tensor:
    from megatron.core.tensor_parallel import all_to_all
    from megatron.core.transformer.moe.moe_utils import unpermute

    order, counts = plan
    coming = counts.view(len(received), -1).sum(1).tolist()
    y_RD = all_to_all(group_or_all(group), y_TD, coming, received.sum(1).tolist())
    weighted = y_RD * weights.flatten()[order][:, None]
    return unpermute(weighted, order // weights.shape[1], torch.Size([len(weights), y_TD.shape[1]]))


@field("05_pipeline_parallel", "interleaved", **LIBRARY, lacks=["any numbers"])
def schedule_table(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    from megatron.core.pipeline_parallel.schedules import get_pp_rank_microbatches, get_schedule_table

    place = SimpleNamespace(
        pp_group=SimpleNamespace(size=lambda: stages, rank=lambda: stage),
        virtual_pipeline_model_parallel_size=chunks,
    )
    _, _, warm_up, _ = get_pp_rank_microbatches(micro_batches, chunks, stages, p2p_communicator=place)
    table = get_schedule_table(micro_batches, chunks, stages)
    forwards = [Forward(*each) for each in table]
    backwards = [Backward(number, chunks - 1 - chunk) for number, chunk in table]
    ones = chain.from_iterable(zip(forwards[warm_up:], backwards, strict=False))
    return [*forwards[:warm_up], *ones, *backwards[len(forwards) - warm_up :]]
