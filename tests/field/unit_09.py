"""Answers to exercises of unit 09."""

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.func import functional_call
from torch.nn import functional

from tests.field.answers import field
from tests.field.meshes import mesh_of

UNIT = "09_memory"


@field(UNIT, "shard_range", "local_shard_size_and_offset")
def size_and_offset(numel: int, ranks: int, rank: int) -> tuple[int, int]:
    size, offset = Shard.local_shard_size_and_offset(numel, ranks, rank)
    return int(offset), int(offset + size)


@field(UNIT, "ShardedOptimizer", "ZeroRedundancyOptimizer", lacks=["a part of the state", "calls"])
class ZeroRedundancy:
    def __init__(
        self, parameters: Iterable[Any], optimizer_class: type[torch.optim.Optimizer], **options: Any
    ) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        given = list(parameters)
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        trained = [{**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups]
        self.optimizer = ZeroRedundancyOptimizer(trained, optimizer_class, **options)
        self.param_groups = self.optimizer.param_groups

    def step(self) -> None:
        """It steps with each rank's own gradients: DDP has averaged them, where it is used."""
        trained = [p for group in self.param_groups for p in group["params"]]
        before = [p.grad for p in trained]
        for parameter in trained:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            dist.all_reduce(gradient)
            parameter.grad = gradient / dist.get_world_size()
        self.optimizer.step()
        for parameter, gradient in zip(trained, before, strict=True):
            parameter.grad = gradient

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


class Within(nn.Module):
    """FullyShardedDataParallel lets go of weights after forward unless it is the outermost one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Any) -> Any:
        return self.inner(*inputs)


@field(UNIT, "FullyShardedUnit", "FullyShardedDataParallel", lacks=["start"])
class FullySharded(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        from torch.distributed.fsdp import FullyShardedDataParallel

        here = {"device_id": torch.device("cpu")}
        inner = FullyShardedDataParallel(copy.deepcopy(module), **here)
        self.outer = [FullyShardedDataParallel(Within(inner), **here)]
        self.shard = inner._flat_param

    def forward(self, *inputs: Any) -> Any:
        return self.outer[0](*inputs)

    def start(self) -> None:
        """Nothing: there is no such call."""


class Flat(nn.Module):
    """A module whose parameters are one vector, which `fully_shard` cuts as the unit asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        parameters = dict(module.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        vector = nn.utils.parameters_to_vector(parameters.values())
        self.vector = nn.Parameter(functional.pad(vector, (0, -len(vector) % dist.get_world_size())).detach())
        self.code = [copy.deepcopy(module)]
        for parameter in self.code[0].parameters():
            parameter.data = parameter.new_empty(0)

    def forward(self, *inputs: Any) -> Any:
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = self.vector[: sum(sizes)].split(sizes)
        named = zip(self.shapes.items(), parts, strict=True)
        weights = {name: part.view(shape) for (name, shape), part in named}
        return functional_call(self.code[0], weights, inputs)


@field(UNIT, "FullyShardedUnit", "fully_shard")
class FullySharded2(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        from torch.distributed.fsdp import fully_shard

        self.inner = [fully_shard(Flat(module))]
        # The outermost one would keep its weights after forward.
        self.outer = [fully_shard(Within(self.inner[0]))]
        vector: Any = self.inner[0].vector
        self.shard = nn.Parameter(vector.to_local())
        vector.register_post_accumulate_grad_hook(self._hand_over)

    def _hand_over(self, vector: Any) -> None:
        """The unit's shard is no DTensor."""
        self.shard.grad = vector.grad.to_local()

    def forward(self, *inputs: Any) -> Any:
        return self.outer[0](*inputs)

    def start(self) -> None:
        self.inner[0].unshard(async_op=True)


@field(UNIT, "clip_grad_norm", "torch.nn.utils")
def total_norm_and_clip(shards: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    shards = [p for p in shards if p.grad is not None]
    gradients = [p.grad.float() for p in shards if p.grad is not None]
    square = torch.nn.utils.get_total_norm(gradients) ** 2 if gradients else torch.zeros(())
    dist.all_reduce(square)
    torch.nn.utils.clip_grads_with_norm_(shards, max_norm, square.sqrt())
    return square.sqrt()


@field(UNIT, "gather_state", "full_tensor", lacks=["arguments unchanged", "each shard once"])
def full_tensor(shards: dict[str, Tensor], shapes: dict[str, torch.Size]) -> dict[str, Tensor] | None:
    def whole(name: str, shape: torch.Size) -> Tensor:
        size = torch.Size([math.prod(shape)])
        placed = DTensor.from_local(
            shards[name], mesh_of(None), [Shard(0)], run_check=False, shape=size, stride=(1,)
        )
        return placed.full_tensor().view(shape)

    state = {name: whole(name, shape) for name, shape in shapes.items()}
    return state if dist.get_rank() == 0 else None
