"""Virtual time for computing: counted, not measured, so that a run repeats itself.

Every tensor operation takes the longer of its floating-point operations over the device's rate and the bytes
of its tensors over the memory's (the roofline: S. Williams, A. Waterman, D. Patterson, Communications of the
ACM 52(4), 2009). It begins when the host has queued it, at the earliest.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import _get_value
from torch.utils.flop_counter import flop_registry

from course_lib.cluster.device import Device
from course_lib.cluster.topology import Cluster
from course_lib.runtime.device_rules import tensors_in, waits
from course_lib.runtime.eager_mode import EagerDispatchMode
from course_lib.runtime.simulator.cuda_kernels import times_moved
from course_lib.runtime.simulator.engine import RankEngine

_HALF = (torch.bfloat16, torch.float16)
_COUNTED_ON_THE_HOST = _get_value.__code__
"""Where PyTorch's optimizers read how many steps they have done: beside a GPU they count on the host."""
_COMMUNICATION = ("c10d", "_c10d_functional", "_dtensor")


class Roofline:
    """How long a device takes for an operation."""

    def __init__(self, device: Device) -> None:
        self._times_moved = times_moved if device.cuda_kernels else None
        self._flops = device.flops or math.inf
        self._half_flops = device.half_flops or self._flops
        self._memory_bandwidth = device.memory_bandwidth or math.inf

    def seconds(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> float:
        """Time of one operation."""
        counts_flops = self._flops < math.inf or self._half_flops < math.inf
        flops = flops_of(func, args, kwargs, result) if counts_flops else 0
        nbytes = 0 if self._memory_bandwidth == math.inf else nbytes_of((*args, *kwargs.values(), result))
        return self.seconds_of(func, flops, nbytes, bool(flops) and computes_in_half(args))

    def seconds_of(self, func: Any, flops: int, nbytes: int, half: bool) -> float:
        """Time of an operation with so many floating-point operations, in bfloat16 or float16 if `half`,
        whose arguments and results have so many bytes.
        """
        if self._times_moved:
            nbytes *= self._times_moved(func)
        rate = self._half_flops if half else self._flops
        return max(flops / rate, nbytes / self._memory_bandwidth)


class ComputeClock(EagerDispatchMode):
    """While it is entered, each tensor operation of the thread moves the clock of `rank`."""

    def __init__(self, engine: RankEngine, rank: int, cluster: Cluster) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._engine = engine
        self._rank = rank
        self._queues = cluster.computes.dispatch_seconds > 0
        self.roofline = Roofline(cluster.computes)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._queues and not self._engine.communicating and waits(func, args, kwargs, _there):
            if sys._getframe(1).f_code is _COUNTED_ON_THE_HOST:
                return func(*args, **kwargs)
            self._engine.host_wait(self._rank)
        result = func(*args, **kwargs)
        if self._engine.communicating or func.namespace in _COMMUNICATION or func.is_view:
            return result
        self._engine.compute(self._rank, self.roofline.seconds(func, args, kwargs, result))
        return result


def _there(device: torch.device) -> bool:
    """A simulated rank's tensors all lie on its device."""
    return True


def computes_in_half(args: Sequence[Any]) -> bool:
    """Whether the first tensor among an operation's arguments has 16 bits a number."""
    return tensors_in(args)[0].dtype in _HALF


def flops_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Floating-point operations of a call, of those that PyTorch counts; 0 of others."""
    count: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
    return 0 if count is None else count(*args, **kwargs, out_val=result)


def nbytes_of(values: Iterable[Any]) -> int:
    """Bytes of the tensors among an operator's arguments, which are in lists if they are in anything."""
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.nbytes
        elif isinstance(value, (list, tuple)):
            total += nbytes_of(value)
    return total
