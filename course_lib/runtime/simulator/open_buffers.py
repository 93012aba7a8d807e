"""The buffers of a rank's open calls: until wait(), nobody writes what a call reads, or uses what it writes.

A real network reads and writes them at some time in between. What a program does with them meanwhile comes
out differently from run to run there, so here it is refused in every run.
"""

import ctypes
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.runtime.communication.call import Operation
from course_lib.runtime.communication.errors import BufferInUse


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Memory that a call reads or writes."""

    operation: Operation
    tensor: Tensor
    """Kept, so that its memory is not given to another tensor meanwhile."""
    begin: int
    end: int
    writes: bool

    def disturbs(self, other: "_Buffer") -> bool:
        """Whether the two overlap, and not only in what both read."""
        return self.begin < other.end and other.begin < self.end and (self.writes or other.writes)

    def content(self) -> bytes:
        """What stands there now. Read past PyTorch, which would charge the rank for computing."""
        return ctypes.string_at(self.begin, self.end - self.begin)


class OpenBuffers:
    """Those of one rank."""

    def __init__(self) -> None:
        self._open: dict[Operation, list[_Buffer]] = {}
        self._sent: dict[Operation, bytes] = {}

    def begin(self, operation: Operation) -> None:
        """A call is about to be made. Raises BufferInUse if an open one is at work on its memory."""
        call = operation.call
        if call.shape_only or not (call.asynchronous or self._open):
            return
        buffers = list(_buffers(operation))
        for others in self._open.values():
            for other in others:
                if any(buffer.disturbs(other) for buffer in buffers):
                    raise BufferInUse(_told(operation, other))
        if call.asynchronous:
            self._open[operation] = buffers
            if call.op == "send" and buffers:
                self._sent[operation] = buffers[0].content()

    def end(self, operation: Operation) -> None:
        """Its rank has waited for the call. Raises BufferInUse if what it sends was written meanwhile."""
        buffers = self._open.pop(operation, [])
        sent = self._sent.pop(operation, None)
        if sent is not None and sent != buffers[0].content():
            raise BufferInUse(
                f"The tensor of {_made(operation)}, was written before wait(): on real processes sometimes "
                "the old numbers arrive, sometimes the new ones. Call wait() first, or send a clone()."
            )


open_buffers: ContextVar[OpenBuffers] = ContextVar("open_buffers")
"""Those of the rank that this thread is."""


def _buffers(operation: Operation) -> Iterator[_Buffer]:
    for tensors, writes in ((operation.inputs, False), (operation.outputs, True)):
        for tensor in tensors:
            # Of others nobody can say which bytes of their range are theirs.
            if tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.is_contiguous():
                begin = tensor.data_ptr()
                if tensor.nbytes:
                    yield _Buffer(operation, tensor, begin, begin + tensor.nbytes, writes)


def _told(operation: Operation, other: _Buffer) -> str:
    doing = "written" if other.writes else "read"
    return (
        f"{operation} uses memory that is still being {doing} by {_made(other.operation)} and has not been "
        "waited for: on real processes the numbers differ from run to run. Call its wait() first, or use a "
        "tensor of its own, torch.empty_like(x)."
    )


def _made(operation: Operation) -> str:
    line = operation.call.line
    return f"{operation}, called at {line}" if line else str(operation)
