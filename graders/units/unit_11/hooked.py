"""DDP's hooks as drivers register them. C++ takes a None in place of a future for an address, and crashes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket, Reducer, _register_comm_hook

Hook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]


def looked_at(hook: Hook) -> Hook:
    """The hook, of which what it returns is looked at before DDP's reducer gets it.

    Raises TypeError for what is no future of a tensor, RuntimeError for one that is not done: on simulated
    ranks data is there when a call returns, so that nobody will set it later.
    """

    def called(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        future: Any = hook(state, bucket)
        if not isinstance(future, torch.futures.Future):
            raise TypeError(
                f"the hook returned a {type(future).__name__}; DDP expects a torch.futures.Future"
            )
        # Of a simulated future `done` would ask the rank's clock.
        if not torch.futures.Future.done(future):
            raise RuntimeError("the future that the hook returned holds nothing, and nobody will set it")
        value = future.value()
        if not isinstance(value, Tensor):
            raise TypeError(f"the hook's future holds a {type(value).__name__}; DDP expects a tensor")
        return future

    return called


def reducer_with(
    hook: Hook,
    state: Any,
    parameters: list[Tensor],
    buckets: list[list[int]],
    group: dist.ProcessGroup | None = None,
) -> Reducer:
    """DDP's reducer with a hook, which is looked at: what DistributedDataParallel is built round.

    DistributedDataParallel itself would load a compiler first. buckets: places in `parameters`. group: None
    stands for all.
    """
    limits = [sum(parameters[place].nbytes for place in bucket) for bucket in buckets]
    members = group or dist.distributed_c10d._get_default_group()
    reducer = Reducer(parameters, buckets, limits, members, [False] * len(parameters))
    _register_comm_hook(reducer, state, looked_at(hook))
    return reducer


def pass_through(reducer: Reducer, loss: Callable[[], Tensor]) -> None:
    """A forward and a backward pass."""
    reducer.prepare_for_forward()
    error = loss()
    reducer.prepare_for_backward([])
    torch.autograd.backward(error)


def weighted_sum(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """A loss of which the parameters get these gradients."""
    return torch.stack([(p * g).sum() for p, g in zip(parameters, gradients, strict=True)]).sum()
