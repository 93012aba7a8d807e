"""Collectives that Gloo does not have, made of those that it has.

It has no gather into a single tensor, which is new in 2.14. In an older PyTorch more is missing: up to 2.11
the list `all_to_all`, in 2.6 the list `reduce_scatter`; an average is refused in 2.6, and is silently the sum
in a reduce-scatter, also in 2.8. A function that uses them runs here all the same; started by torchrun it
needs a newer PyTorch, or NCCL.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.runtime.communication.torch_versions import before

_REFUSAL = "does not support"
"""What the errors say then. They are raised at once, on every rank."""
_DOES_NOT_AVERAGE = before((2, 11))


def carried_out(group: Any, name: str, arguments: Sequence[Any]) -> Any:
    """The handle of torch's method `name` of a group, which is made of other methods where it is missing."""
    if _DOES_NOT_AVERAGE and _asks_for_average(arguments):
        return _average(group, name, arguments)
    try:
        return getattr(group, name)(*arguments)
    except RuntimeError as error:
        if name not in _INSTEAD or _REFUSAL not in str(error):
            raise
    return _INSTEAD[name](group, *arguments)


class _Composed(dist.Work):
    """The handle of a call that is over once another is, and what that left is put into its place."""

    def __init__(self, inner: Any, put: Callable[[], None]) -> None:
        super().__init__()
        self._inner = inner
        self._put: Callable[[], None] | None = put

    def wait(self, *timeout: Any) -> bool:
        waited: bool = self._inner.wait(*timeout)
        self._over()
        return waited

    def is_completed(self) -> bool:
        completed: bool = self._inner.is_completed()
        if completed:
            self._over()
        return completed

    def is_success(self) -> bool:
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        return self._inner.exception()

    def get_future(self) -> Any:
        return self._inner.get_future().then(self._put_then)

    def _put_then(self, ended: Any) -> Any:
        self._over()
        return ended.value()

    def _over(self) -> None:
        put, self._put = self._put, None
        if put:
            put()


@contextmanager
def without_its_greeting() -> Iterator[None]:
    """Some releases print how many ranks a new group has met, as if a program had."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(nowhere)
        os.close(kept)


def _all_to_all(group: Any, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
    sent = torch.cat([each.reshape(-1) for each in inputs])
    received = sent.new_empty(sum(each.numel() for each in outputs))
    sizes = [[each.numel() for each in tensors] for tensors in (outputs, inputs)]
    work = group.alltoall_base(received, sent, *sizes, opts or dist.AllToAllOptions())

    def put() -> None:
        for output, part in zip(outputs, torch.split(received, sizes[0]), strict=True):
            output.copy_(part.view_as(output))

    return _Composed(work, put)


def _reduce_scatter(group: Any, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
    sizes = [each.numel() for each in inputs[0]]
    whole = torch.cat([each.reshape(-1) for each in inputs[0]])
    options: Any = dist.AllreduceOptions()
    options.reduceOp = opts.reduceOp if opts else dist.ReduceOp.SUM
    work = carried_out(group, "allreduce", ([whole], options))

    def put() -> None:
        outputs[0].copy_(torch.split(whole, sizes)[group.rank()].view_as(outputs[0]))

    return _Composed(work, put)


def _gather_single(group: Any, output: Tensor, tensor: Tensor, opts: Any) -> Any:
    parts = list(output.view(group.size(), *tensor.shape)) if group.rank() == opts.rootRank else []
    return group.gather([parts] if parts else [], [tensor], opts)


_INSTEAD: dict[str, Callable[..., Any]] = {
    "alltoall": _all_to_all,
    "gather_single": _gather_single,
    "reduce_scatter": _reduce_scatter,
}


def _asks_for_average(arguments: Sequence[Any]) -> bool:
    """Whether Gloo is to average; NCCL can. The options come last, what is written first."""
    return (
        bool(arguments)
        and getattr(arguments[-1], "reduceOp", None) == dist.ReduceOp.AVG
        and not _tensors(arguments[0])[0].is_cuda
    )


def _tensors(written: Tensor | list[Tensor]) -> list[Tensor]:
    return [written] if isinstance(written, Tensor) else written


def _average(group: Any, name: str, arguments: Sequence[Any]) -> Any:
    """The sum, divided."""
    opts = arguments[-1]
    opts.reduceOp = dist.ReduceOp.SUM
    work = carried_out(group, name, arguments)

    def put() -> None:
        # Of a reduce, only the root has the result.
        if getattr(opts, "rootRank", group.rank()) == group.rank():
            for tensor in _tensors(arguments[0]):
                tensor.div_(group.size())

    return _Composed(work, put)
