"""Functional collectives of meta tensors, which DTensor is made of: counted and timed like any others.

torch itself gives back a tensor of the right shape and calls no process group. Here the call is made as with
data (`torch/csrc/distributed/c10d/Functional.cpp`), and waited for where the program waits for the tensor.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, _resolve_process_group

from course_lib.runtime.simulator.engine import current_rank
from course_lib.runtime.simulator.replaced import replaced

_Tensors = list[Tensor]
_Make = Callable[..., Any]
"""(group, inputs, outputs, the other arguments) -> the handle of the call."""


class _Open(threading.local):
    """A rank's calls that it has not waited for: storage of an output -> the output and the handle."""

    def __init__(self) -> None:
        self.works: dict[int, tuple[Tensor, Any]] = {}


_open = _Open()


@contextmanager
def counted_on_meta() -> Iterator[None]:
    """Have simulated ranks make these calls on meta tensors too."""
    namespace = torch.ops._c10d_functional
    calls = {name: partial(_counted, make) for name, make in _MAKERS.items()} | {"wait_tensor": _wait_tensor}
    operators = {name: _Operator(getattr(namespace, name), call) for name, call in calls.items()}
    wrap = partial(_wrap_tensor, funcol._maybe_wrap_tensor)
    with replaced(namespace, **operators), replaced(funcol, _maybe_wrap_tensor=wrap):
        yield


class _Operator:
    """An operator of torch's that is called in another way, and is torch's own in everything else."""

    def __init__(self, torchs: Any, call: Callable[..., Any]) -> None:
        self._torchs = torchs
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(self._torchs, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchs, name)


def _counted(make: _Make, torchs: Any, given: Any, *arguments: Any) -> Any:
    """Call torch's operator, which takes tensors first and the group's name last; and make the call."""
    result = torchs(given, *arguments)
    inputs, outputs = _listed(given), _listed(result)
    if current_rank.get() is not None and all(type(each) is Tensor and each.is_meta for each in inputs):
        *others, name = arguments
        work = make(_resolve_process_group(name), inputs, outputs, *others)
        _open.works.update((_storage(output), (output, work)) for output in outputs)
    return result


def _wrap_tensor(torchs: Any, tensor: Tensor) -> Any:
    """A tensor that is waited for when it is used first; on meta torch's own is not waited for."""
    return funcol.AsyncCollectiveTensor(tensor) if _storage(tensor) in _open.works else torchs(tensor)


def _wait_tensor(torchs: Any, tensor: Tensor) -> Any:
    _, work = _open.works.pop(_storage(tensor), (tensor, None))
    if work is not None:
        work.wait()
    return torchs(tensor)


def _storage(tensor: Tensor) -> int:
    """What views of one tensor have in common, by which torch too finds the call that fills it."""
    storage: int = tensor.untyped_storage()._cdata
    return storage


def _listed(tensors: Any) -> _Tensors:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _options(kind: Any, reduction: str = "") -> Any:
    options = kind()
    if hasattr(options, "asyncOp"):
        options.asyncOp = True
    if reduction:
        options.reduceOp = getattr(dist.ReduceOp, reduction.upper())
    return options


def _all_reduce(group: Any, inputs: _Tensors, outputs: _Tensors, reduction: str) -> Any:
    return group.allreduce(outputs, _options(dist.AllreduceOptions, reduction))


def _all_reduce_coalesced(group: Any, inputs: _Tensors, outputs: _Tensors, reduction: str) -> Any:
    return group.allreduce_coalesced(outputs, _options(dist.AllreduceCoalescedOptions, reduction))


def _all_gather(group: Any, inputs: _Tensors, outputs: _Tensors, size: int) -> Any:
    return group.all_gather_single_coalesced(outputs, inputs, _options(AllgatherOptions))


def _reduce_scatter(group: Any, inputs: _Tensors, outputs: _Tensors, reduction: str, size: int) -> Any:
    options = _options(dist.ReduceScatterOptions, reduction)
    return group.reduce_scatter_single_coalesced(outputs, inputs, options)


def _all_to_all(group: Any, inputs: _Tensors, outputs: _Tensors, received: Any, sent: Any) -> Any:
    return group.all_to_all_single(*outputs, *inputs, received, sent, _options(dist.AllToAllOptions))


def _broadcast(group: Any, inputs: _Tensors, outputs: _Tensors, root: int) -> Any:
    options = _options(dist.BroadcastOptions)
    options.rootRank = root
    return group.broadcast(outputs, options)


_MAKERS: dict[str, _Make] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_coalesced": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
}
