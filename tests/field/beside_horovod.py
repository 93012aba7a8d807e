"""Answers by Horovod, which stands beside the workbook: unit 04.

Its compiled core knows one rank a process, and simulated ranks are threads. So its own Python calls
torch.distributed here, without the core's fusion and its negotiation about the order.
"""

from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.field.answers import field

UNIT = "04_horovod"
LIBRARY = {"library": "Horovod", "beside": "horovod"}
Handle = tuple[Tensor, Any]


def all_reduce(tensor: Tensor, **_: Any) -> Handle:
    return tensor, dist.all_reduce(tensor, async_op=True)


def waited_for(handle: Handle) -> Tensor:
    tensor, work = handle
    work.wait()
    return tensor.div_(dist.get_world_size())


@cache
def over_torch() -> tuple[Any, Any]:
    """Horovod's modules `optimizer` and `functions`, with torch.distributed below them."""
    from horovod.torch import functions, optimizer

    vars(optimizer).update(size=dist.get_world_size, allreduce_async_=all_reduce, synchronize=waited_for)
    vars(functions).update(
        rank=dist.get_rank,
        size=dist.get_world_size,
        broadcast_=lambda tensor, root, *_: dist.broadcast(tensor, root),
        broadcast_async_=lambda tensor, root, *_: dist.broadcast(tensor.detach(), root, async_op=True),
        synchronize=lambda work: work.wait(),
    )
    return optimizer, functions


@field(
    UNIT,
    "DistributedOptimizer",
    **LIBRARY,
    lacks=["fusion plan", "other orders, unused parameters", "the optimizer's own"],
)
class Wrapped:
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        backward_passes_per_step: int = 1,
        threshold: int = 128 * 2**20,
    ) -> None:
        self.horovods = over_torch()[0].DistributedOptimizer(
            optimizer,
            named_parameters,
            backward_passes_per_step=backward_passes_per_step,
            process_set=SimpleNamespace(included=lambda: True),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["horovods"], name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Horovod's has no arguments."""
        self.horovods.zero_grad()


@field(
    UNIT,
    "broadcast_state",
    **LIBRARY,
    lacks=["buffers and frozen parameters", "state"],
)
def broadcast_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    _, functions = over_torch()
    # In this order: where there is no state yet, the optimizer takes a step that decay makes one of weights.
    functions.broadcast_optimizer_state(optimizer, root_rank=0)
    functions.broadcast_parameters(model.state_dict(), root_rank=0)
