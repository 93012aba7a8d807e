"""What a call on simulated ranks gives back: the handle of its operation, and futures.

PyTorch runs what hangs on a future from C++, where nobody can wait for a turn: its data is there at once, and
whoever waits for it moves the rank's clock.
"""

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any, cast

import torch

# Its functions take for granted the group that there is when it is imported: none here, one rank's own there.
import torch.distributed.nn.functional
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from course_lib.runtime.communication.call import Operation
from course_lib.runtime.communication.callsite import is_library
from course_lib.runtime.communication.errors import NeverWaited
from course_lib.runtime.communication.torch_versions import Handle
from course_lib.runtime.simulator.engine import RankEngine
from course_lib.runtime.simulator.open_buffers import OpenBuffers

as_on_gloo: ContextVar[bool] = ContextVar("as_on_gloo", default=False)
"""Whether a message of this rank's is over only when its `wait` has returned, as on Gloo."""
ASKED_IN_VAIN = 1000
"""How often one may ask there whether it is: on Gloo a loop that asks comes to no end."""


class SimulatedFuture(torch.futures.Future[Any]):
    """A future whose data is there already, and whose `wait` moves the rank's clock to when it really was."""

    def __init__(
        self, engine: RankEngine, operations: Sequence[Operation], buffers: OpenBuffers, value: Any
    ) -> None:
        """operations: those that it hangs on, whose memory `buffers` keeps until they are waited for."""
        super().__init__()
        self._engine = engine
        self._operations = operations
        self._buffers = buffers
        self.set_result(value)

    def wait(self) -> Any:
        """The value; the clock moves to the operations' end."""
        for operation in self._operations:
            if not self._buffers.is_over_here(operation):
                self._engine.wait(operation)
                self._buffers.end(operation)
        return super().wait()

    def done(self) -> bool:
        """Whether it is over; asking takes a little virtual time."""
        for operation in self._operations:
            if not self._buffers.is_over_here(operation):
                if not self._engine.poll(operation):
                    return False
                self._buffers.end(operation)
        return True

    def then(self, callback: Callable[..., Any]) -> torch.futures.Future[Any]:
        """What the callback makes of this future, there when this one is.

        The callback runs at once, and is given a future that is over. To wait for what it hangs on takes no
        time there, as where it runs afterwards.
        """
        over: torch.futures.Future[Any] = torch.futures.Future()
        over.set_result(self.value())
        with self._buffers.over_here(self._operations):
            following = super().then(lambda _: callback(over))
        try:
            return SimulatedFuture(self._engine, self._operations, self._buffers, following.wait())
        except Exception:  # the callback's; whoever waits for it gets it
            return following

    def add_done_callback(self, callback: Callable[..., None]) -> None:
        """Run the callback, at once; as in `then`, this future is over there."""
        with self._buffers.over_here(self._operations):
            super().add_done_callback(callback)


def all_of(futures: Sequence[Any]) -> torch.futures.Future[Any]:
    """What torch.futures.collect_all returns: a future of them all, there when the last of them is."""
    simulated = [future for future in futures if isinstance(future, SimulatedFuture)]
    if not simulated:
        collected: Any = torch._C._collect_all(list(futures))
        return cast("torch.futures.Future[Any]", collected)
    first = simulated[0]
    operations = [operation for future in simulated for operation in future._operations]
    return SimulatedFuture(first._engine, operations, first._buffers, list(futures))


class SimulatedWork(Handle):
    """The handle of an operation."""

    def __init__(
        self, engine: RankEngine, operation: Operation, result: list[Tensor], buffers: OpenBuffers
    ) -> None:
        super().__init__()
        self._engine = engine
        self._operation = operation
        self._result = result
        self._buffers = buffers
        self._asked: int | None = 0

    def wait(self, timeout: Any = None) -> bool:
        """Block until the operation is done."""
        self._asked = None
        self.waited_for = True
        if self._buffers.is_over_here(self._operation):
            return True
        self._engine.wait(self._operation)
        if self._operation.call.asynchronous:
            self._buffers.end(self._operation)
        return True

    def is_completed(self) -> bool:
        """Whether the operation is over; asking takes a little virtual time.

        Raises NeverWaited if it is asked too often where only who waits is told.
        """
        if as_on_gloo.get() and self._asked is not None and self._operation.call.is_message:
            self._asked += 1
            if self._asked > ASKED_IN_VAIN:
                op = self._operation.call.op
                raise NeverWaited(
                    f"is_completed of this {op} was asked {ASKED_IN_VAIN:,} times, and nobody has waited for "
                    f"it: on Gloo it stays False until then. Call wait()."
                )
            return False
        over = self._engine.poll(self._operation)
        if over:
            self._buffers.end(self._operation)
        return over

    def is_success(self) -> bool:
        """Whether the operation is over; in the simulator none ends badly without ending the run."""
        return self._engine.is_done(self._operation)

    def synchronize(self) -> None:
        """The same as `wait`, since there are no streams."""
        self.wait()

    def result(self) -> list[Tensor]:
        """The tensors that the operation wrote."""
        return self._result

    def source_rank(self) -> int:
        """Who sent what was received, for a receive from anyone; as torch has it, a position in the group."""
        assert self._operation.peer is not None
        return self._operation.call.group.members.index(self._operation.peer)

    _source_rank = source_rank

    def get_future(self) -> SimulatedFuture:
        """A completed future: C++ code, such as DistributedDataParallel's reducer, cannot wait for a turn.

        The rank blocks here until the data is there, without moving its clock. What DistributedDataParallel
        asks for during a backward pass it needs at the pass's end, and the clock follows there, so that
        communication overlaps with what is still computed. A program's own hook waits when it likes. Until
        then, or until the rank's clock has come that far, the operation's memory is in use, and who reads
        what the operation writes finds NaN.
        """
        self._engine.wait_for_data(self._operation)
        # C++ code knows when it may read.
        own = sys._getframe(1).f_code is not _BACKWARD
        self._buffers.hand_to_future(self._operation, hide=own)
        if torch._C._current_graph_task_id() != -1 and _for_the_reducer(sys._getframe(1)):
            autograd = torch.autograd.Variable._execution_engine
            autograd.queue_callback(self._end)
        return SimulatedFuture(self._engine, [self._operation], self._buffers, self._result)

    def _end(self) -> None:
        self._engine.wait(self._operation)
        self._buffers.end(self._operation)


def _for_the_reducer(frame: FrameType | None) -> bool:
    """Whether DistributedDataParallel's reducer asks, in C++ within backward, or a hook that it has called.

    Such a hook is given a bucket, which no other hook is; and where no code of the program's own is between
    backward and here, nobody else can wait.
    """
    own = False
    while frame is not None and frame.f_code is not _BACKWARD:
        if any(isinstance(value, GradBucket) for value in frame.f_locals.values()):
            return True
        own = own or not is_library(frame.f_code.co_filename)
        frame = frame.f_back
    return not own


_BACKWARD = torch.autograd.graph._engine_run_backward.__code__
