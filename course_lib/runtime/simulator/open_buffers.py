"""The buffers of a rank's open calls: until wait(), nobody writes what a call reads, or uses what it writes.

A real network reads and writes them at some time in between. What a program does with them meanwhile comes
out differently from run to run there, so here it is refused in every run.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from course_lib.runtime.communication.call import Operation
from course_lib.runtime.communication.errors import BufferInUse
from course_lib.runtime.simulator.engine import RankEngine

SMALL = 1 << 16
"""Bytes of which a copy costs next to nothing."""
SAMPLES = 512
"""Words that are looked at of more."""
_NO_NUMBER = 0xFF
"""A byte of which, whatever the floating dtype, NaN is made."""


# A NamedTuple, for one is made for each tensor of a message.
class _Buffer(NamedTuple):
    """Memory that a call reads or writes."""

    operation: Operation
    tensor: Tensor
    """Kept, so that its memory is not given to another tensor meanwhile."""
    begin: int
    end: int
    writes: bool

    def content(self) -> bytes:
        """What stands there now. Read past PyTorch, which would charge the rank for computing."""
        return (ctypes.c_char * (self.end - self.begin)).from_address(self.begin).raw


class _Sent:
    """What a large buffer held at some time, to tell later whether that was written since.

    A copy would take longer than all else that is done for a message. But PyTorch counts the writes to its
    storage, of which a sum tells whether they were to another part; a sample shows most writes past PyTorch.
    """

    def __init__(self, buffer: _Buffer) -> None:
        self._buffer = buffer
        self._sample = self._read_sample()
        self._writes = self._count_writes()
        alone = buffer.tensor.untyped_storage().nbytes() == buffer.tensor.nbytes
        self._sum = None if alone and self._writes is not None else self._words().sum()

    def written(self) -> bool:
        """Whether the buffer was written since."""
        if self._sample != self._read_sample():
            return True
        if self._writes is not None and self._writes == self._count_writes():
            return False
        return self._sum is None or bool(self._sum != self._words().sum())

    def _read_sample(self) -> bytes:
        words = self._words()
        return words[:: len(words) // SAMPLES].tobytes() + ctypes.string_at(self._buffer.end - 8, 8)

    def _words(self) -> npt.NDArray[np.uint64]:
        begin, end = self._buffer.begin, self._buffer.end
        words = (ctypes.c_uint64 * ((end - begin) // 8)).from_address(begin)
        return np.frombuffer(memoryview(words), np.uint64)

    def _count_writes(self) -> int | None:
        tensor = self._buffer.tensor
        return None if tensor.is_inference() else tensor._version


Content = bytes | _Sent
"""What stood in a buffer: all of it, or, of a large one, enough to tell later whether it was written."""


def _content(buffer: _Buffer) -> Content:
    return _Sent(buffer) if buffer.end - buffer.begin > SMALL else buffer.content()


def _written(buffer: _Buffer, before: Content) -> bool:
    return before.written() if isinstance(before, _Sent) else before != buffer.content()


class OpenBuffers:
    """Those of one rank."""

    def __init__(self) -> None:
        self._open: dict[Operation, Sequence[_Buffer]] = {}
        self._sent: dict[Operation, Content] = {}
        self._of_futures: dict[Operation, list[Content]] = {}
        self._hidden: dict[Operation, list[tuple[_Buffer, bytes]]] = {}
        self._over_here: list[Operation] = []

    def begin(self, operation: Operation, engine: RankEngine) -> None:
        """A call is about to be made. Raises BufferInUse if an open one is at work on its memory."""
        call = operation.call
        if call.shape_only or not (call.asynchronous or self._open):
            return
        if self._of_futures:
            self._end_those_over(engine.now(operation.rank))
        buffers = _buffers(operation)
        for open_one, others in self._open.items():
            for other in others if open_one not in self._over_here else ():
                _, _, other_begin, other_end, other_writes = other
                for _, _, begin, end, writes in buffers:
                    # They overlap, and not only in what both read.
                    if begin < other_end and other_begin < end and (writes or other_writes):
                        raise BufferInUse(_told(operation, other))
        if call.asynchronous:
            self._open[operation] = buffers
            if call.op == "send" and buffers:
                self._sent[operation] = _content(buffers[0])

    def forget(self) -> None:
        """All open calls: they have been broken off."""
        for operation in list(self._hidden):
            self._show(operation)
        for open_ones in (self._open, self._sent, self._of_futures):
            open_ones.clear()
        self._over_here.clear()

    def hand_to_future(self, operation: Operation, hide: bool = False) -> None:
        """The call's data is there, and a future tells when the call is over. That may go unseen: time tells
        it too. Until then nobody but a callback may write what the call has written.

        hide: nobody but a callback may read it either, and finds no numbers.
        """
        if operation not in self._open:
            return
        written = [buffer for buffer in self._open[operation] if buffer.writes]
        if hide and operation not in self._hidden:
            floating = [buffer for buffer in written if buffer.tensor.is_floating_point()]
            self._hidden[operation] = [(buffer, buffer.content()) for buffer in floating]
            for buffer in floating:
                ctypes.memset(buffer.begin, _NO_NUMBER, buffer.end - buffer.begin)
        self._of_futures[operation] = [_content(buffer) for buffer in written]

    def _show(self, operation: Operation) -> None:
        for buffer, content in self._hidden.pop(operation, ()):
            ctypes.memmove(buffer.begin, content, len(content))

    def _end_those_over(self, clock: float) -> None:
        for operation in [each for each in self._of_futures if each.done and each.end <= clock]:
            self.end(operation)

    @contextmanager
    def over_here(self, operations: Sequence[Operation]) -> Iterator[None]:
        """Within the block, a callback of theirs, these calls are over, whatever the clock says. Raises
        BufferInUse if their memory was written before.
        """
        for operation in operations:
            self._check_unwritten(operation)
            self._show(operation)
        unwritten = [each for each in operations if self._of_futures.pop(each, None) is not None]
        before = len(self._over_here)
        self._over_here.extend(operations)
        try:
            yield
        finally:
            del self._over_here[before:]
            for operation in unwritten:
                self.hand_to_future(operation)

    def is_over_here(self, operation: Operation) -> bool:
        """Whether a callback of this call is running."""
        return operation in self._over_here

    def end(self, operation: Operation) -> None:
        """Its rank has waited for the call. Raises BufferInUse if its memory was written meanwhile."""
        self._check_unwritten(operation)
        self._show(operation)
        buffers = self._open.pop(operation, None) or ()
        self._of_futures.pop(operation, None)
        sent = self._sent.pop(operation, None)
        if buffers and sent is not None and _written(buffers[0], sent):
            raise BufferInUse(
                f"The tensor of {_made(operation)}, was written before wait(): on real processes sometimes "
                "the old numbers arrive, sometimes the new ones. Call wait() first, or send a clone()."
            )

    def _check_unwritten(self, operation: Operation) -> None:
        """Raise BufferInUse if what the call has written was written since its future was asked for."""
        written = [buffer for buffer in self._open.get(operation, ()) if buffer.writes]
        if any(map(_written, written, self._of_futures.get(operation, ()))):
            raise BufferInUse(
                f"What {_made(operation)}, writes was written by this rank before its future was waited for: "
                "on real processes sometimes the one comes last, sometimes the other. Write it in a callback "
                "of then(), or call wait() first."
            )


open_buffers: ContextVar[OpenBuffers] = ContextVar("open_buffers")
"""Those of the rank that this thread is."""


def _buffers(operation: Operation) -> Sequence[_Buffer]:
    call = operation.call
    if call.is_message:
        # Its one tensor is contiguous, or the call would have been refused.
        (tensor,) = operation.inputs or operation.outputs
        if not tensor.is_cpu or not call.nbytes:
            return ()
        begin = tensor.data_ptr()
        return (_Buffer(operation, tensor, begin, begin + call.nbytes, call.op == "recv"),)
    return [
        _Buffer(operation, tensor, begin := tensor.data_ptr(), begin + tensor.nbytes, writes)
        for tensors, writes in ((operation.inputs, False), (operation.outputs, True))
        for tensor in tensors
        # Of others nobody can say which bytes of their range are theirs.
        if tensor.layout is torch.strided and tensor.is_cpu and tensor.is_contiguous() and tensor.nbytes
    ]


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
