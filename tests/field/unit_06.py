"""Answers to exercises of unit 06, by PyTorch's DTensor and functional collectives."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import (
    all_gather_tensor_autograd,
    reduce_scatter_tensor_autograd,
)
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.func import functional_call

from tests.field.answers import field
from tests.field.meshes import group_or_all, mesh_of

UNIT = "06_tensor_parallel"
Group = dist.ProcessGroup | None


def placed(x: Tensor, placement: Placement, group: Group) -> DTensor:
    return DTensor.from_local(x, mesh_of(group), [placement], run_check=False)


class Parts(nn.Module):
    """A module whose parameters are DTensors, with this rank's parts of them as its parameters.

    whole: with plain parameters; it stays as it is. plan: as for `parallelize_module`.
    """

    def __init__(self, whole: nn.Module, plan: Any, group: Group) -> None:
        super().__init__()
        self.group = group
        cut = parallelize_module(copy.deepcopy(whole), mesh_of(group), plan, src_data_rank=None)
        self.cut = [cut]
        self.placed_as = {name: (p.placements, p.shape, p.stride()) for name, p in cut.named_parameters()}
        for name, parameter in dict(cut.named_parameters()).items():
            path, _, last = name.rpartition(".")
            if path and not hasattr(self, path):
                self.add_module(path, nn.Module())
            local = nn.Parameter(parameter.to_local().detach().clone())
            self.get_submodule(path).register_parameter(last, local)
            # What stands there in a call is made of `local` anew.
            cut.get_submodule(path).register_parameter(last, nn.Parameter(torch.empty(0)))

    def train(self, mode: bool = True) -> "Parts":
        self.cut[0].train(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = functional_call(self.cut[0], dict(self._placed()), (x,))
        return y

    def _placed(self) -> Iterator[tuple[str, DTensor]]:
        mesh = mesh_of(self.group)
        for name, local in self.named_parameters():
            placements, shape, stride = self.placed_as[name]
            yield (
                name,
                DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride),
            )


@field(UNIT, "f", "DTensor")
def f(x: Tensor, group: Group = None) -> Tensor:
    return placed(x, Replicate(), group).to_local(grad_placements=[Partial()])


@field(UNIT, "g", "DTensor")
def g(x: Tensor, group: Group = None) -> Tensor:
    return placed(x, Partial(), group).redistribute(placements=[Replicate()]).to_local()


@field(UNIT, "ColumnParallelLinear", "ColwiseParallel")
class Columns(Parts):
    def __init__(self, inputs: int, outputs: int, bias: bool = True, group: Group = None) -> None:
        super().__init__(nn.Linear(inputs, outputs, bias), ColwiseParallel(), group)
        if not bias:
            self.bias = None


@field(UNIT, "RowParallelLinear", "RowwiseParallel", lacks=["widths that do not divide"])
class Rows(Parts):
    def __init__(self, inputs: int, outputs: int, bias: bool = True, group: Group = None) -> None:
        super().__init__(nn.Linear(inputs, outputs, bias), RowwiseParallel(), group)
        if not bias:
            self.bias = None


@field(UNIT, "parallel_mlp", "parallelize_module", lacks=["uneven parts"])
def cut_mlp(mlp: nn.Module, group: Group = None) -> nn.Module:
    return Parts(mlp, {"up": ColwiseParallel(), "down": RowwiseParallel()}, group)


@field(UNIT, "parallel_attention", "parallelize_module", lacks=["heads that cannot be shared out evenly"])
def cut_attention(attention: nn.Module, group: Group = None) -> nn.Module:
    # x becomes one DTensor for the three, whose gradients are added up before the ranks are.
    one = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    inner = {name: ColwiseParallel() for name in ("query", "key", "value")}
    return Parts(attention, {"": one, **inner, "output": RowwiseParallel()}, group)


@field(UNIT, "VocabParallelEmbedding", "RowwiseParallel")
class Vocabulary(Parts):
    def __init__(self, embedding: nn.Embedding, group: Group = None) -> None:
        super().__init__(embedding, RowwiseParallel(input_layouts=Replicate()), group)


class UnderLossParallel(torch.autograd.Function):
    """`loss_parallel` wants backward to be called within it, too."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, vocabulary: int, group: Group) -> Tensor:
        ctx.logits = logits.detach().requires_grad_()
        shape = torch.Size([len(target), vocabulary])
        with torch.enable_grad(), loss_parallel():
            whole = DTensor.from_local(
                ctx.logits, mesh_of(group), [Shard(1)], run_check=False, shape=shape, stride=(vocabulary, 1)
            )
            ctx.loss = nn.functional.cross_entropy(whole, target, reduction="none")
        return ctx.loss.to_local().detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        arriving = DTensor.from_local(gradient, ctx.loss.device_mesh, [Replicate()], run_check=False)
        with loss_parallel():
            (found,) = torch.autograd.grad(ctx.loss, ctx.logits, arriving)
        return found, None, None, None


@field(UNIT, "vocab_parallel_cross_entropy", "loss_parallel")
def cross_entropy(logits_shard: Tensor, target: Tensor, vocabulary: int, group: Group = None) -> Tensor:
    loss: Tensor = UnderLossParallel.apply(logits_shard, target, vocabulary, group)
    return loss


@field(UNIT, "gather_sequence", "all_gather_tensor_autograd")
def gather_sequence(x_BTD: Tensor, group: Group = None) -> Tensor:
    return all_gather_tensor_autograd(x_BTD, 1, group_or_all(group))


@field(UNIT, "scatter_sequence", "reduce_scatter_tensor_autograd")
def scatter_sequence(x_BTD: Tensor, group: Group = None) -> Tensor:
    return reduce_scatter_tensor_autograd(x_BTD, "sum", 1, group_or_all(group))


@field(UNIT, "sequence_parallel_mlp", "DTensor")
def sequence_mlp(
    x_BTD: Tensor, norm: nn.LayerNorm, up: nn.Linear, down: nn.Linear, bias: Tensor, group: Group = None
) -> Tensor:
    x = placed(x_BTD, Shard(1), group)
    weight, shift = (placed(each, Replicate(), group) for each in (norm.weight, norm.bias))
    normed = nn.functional.layer_norm(x, norm.normalized_shape, weight, shift, norm.eps)
    whole = normed.redistribute(placements=[Replicate()])
    cut = placed(up.weight, Shard(0), group), placed(up.bias, Shard(0), group)
    hidden = nn.functional.gelu(nn.functional.linear(whole, *cut))
    y = nn.functional.linear(hidden, placed(down.weight, Shard(1), group))
    y = y.redistribute(placements=[Shard(1)]) + placed(bias, Replicate(), group)
    return (x + y).to_local()
