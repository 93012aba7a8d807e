"""A rank's calls as records of its log: when each is made, waited for and over."""

import itertools
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from course_lib.runtime.communication.call import Call
from course_lib.runtime.communication.torch_versions import Handle
from course_lib.runtime.processes.call_log import (
    CallLog,
    Done,
    Known,
    Posted,
    Resumed,
    Waits,
    now,
    place_of,
)
from course_lib.runtime.processes.completion import CompletionPoller

_NO_TIMEOUT = timedelta(0)
"""What torch passes for "wait as long as the group's timeout says"."""


class CallLogger:
    """Numbers a rank's calls and writes them to its log."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._numbers = itertools.count()
        self._main_thread = threading.get_ident()
        self._known: dict[Call, int] = {}
        """Calls that the log explains already, by their numbers there."""
        self._explaining = threading.Lock()
        self._poller = CompletionPoller(self.done)

    def posted(self, call: Call, peer: int | None = None) -> int:
        """Log a call that is about to be made. peer: a message's other side. Returns its number."""
        number = next(self._numbers)
        waits = not call.asynchronous and self._is_main_thread()
        self._log.write(Posted(number, now(), self._place_of(call), peer, waits))
        return number

    def _place_of(self, call: Call) -> int:
        """The number by which the log knows calls that are alike; explained at the first of them."""
        if call not in self._known:
            with self._explaining:
                if call not in self._known:
                    self._log.write(_known_call(len(self._known), call))
                    self._known[call] = len(self._known)
        return self._known[call]

    def waits(self, number: int) -> None:
        """Log that the rank waits. It is stuck only where its main thread is: of another, nothing but that
        the call has been asked for is logged.
        """
        self._log.write(Waits(number) if self._is_main_thread() else Resumed(number))

    def _is_main_thread(self) -> bool:
        return threading.get_ident() == self._main_thread

    def done(self, number: int, source: int | None = None) -> None:
        """Log that a call is over."""
        self._log.write(Done(number, now(), source))

    def resumed(self, number: int) -> None:
        """Log that a wait has ended and the call has not."""
        self._log.write(Resumed(number))

    @contextmanager
    def resuming(self, number: int) -> Iterator[None]:
        """Log that a blocking call is over at the end of the block; or has failed, if that raises."""
        try:
            yield
        except BaseException:
            self.resumed(number)
            raise
        self.done(number)

    def log_end_on_gpu(self, number: int, work: Any) -> None:
        """Log the end of a call when it comes. Its future tells only that its kernel is queued."""
        self._poller.watch(number, work)

    def log_end(self, number: int, work: Any) -> None:
        """Log the end of an asynchronous collective when it comes, whether or not somebody waits for it."""
        try:
            future = work.get_future()
        except (RuntimeError, NotImplementedError):
            # Some of Gloo's works have none, such as that of reduce_scatter.
            self._poller.watch(number, work)
        else:
            future.add_done_callback(lambda ended: self._ended(number, ended))

    def settle(self) -> None:
        """Return when the ends of all calls that are over, and that nothing tells of, are logged."""
        self._poller.drain()

    def _ended(self, number: int, future: Any) -> None:
        try:
            future.value()
        except RuntimeError:
            self.resumed(number)
        else:
            self.done(number)


def _known_call(place: int, call: Call) -> Known:
    """A call in the form that is fast to write."""
    shape = None if call.shape is None else (str(call.shape[0]).removeprefix("torch."), tuple(call.shape[1]))
    return Known(
        place,
        call.op,
        call.group.name,
        call.group.members,
        call.root,
        call.tag,
        call.reduction,
        shape,
        call.parts,
        call.nbytes,
        call.strides,
        call.asynchronous,
        place_of(call.line),
    )


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A call that has been logged and made."""

    number: int
    call: Call
    on_gpu: bool


SECOND_WAIT = (
    "This send or receive has been waited for before. Here the second wait() returns, with Gloo alone it "
    "never does: wait for each handle once."
)


class LoggedWork(Handle):
    """The handle of a call: the inner one, with records of when somebody waits for it and when it is over."""

    def __init__(
        self,
        inner: Any,
        logger: CallLogger,
        logged: LoggedCall,
        members: tuple[int, ...] | None = None,
    ) -> None:
        """members: global ranks of the group, for a receive from anyone only."""
        super().__init__()
        self.inner = inner
        self._logger = logger
        self._number = logged.number
        self._call = logged.call
        self._on_gpu = logged.on_gpu
        self._members = members
        self._over = False

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until the call is over; on a GPU, until the current stream would wait for it."""
        if self._over and self._call.is_message:
            warnings.warn(SECOND_WAIT, RuntimeWarning, stacklevel=2)
            return True
        self.waited_for = True
        if self._call.asynchronous:
            self._logger.waits(self._number)
        try:
            waited: bool = self.inner.wait(timeout)
        except BaseException:
            self._logger.resumed(self._number)
            raise
        if self._on_gpu:
            self._logger.resumed(self._number)
            return waited
        source = None if self._members is None else self._members[self.inner._source_rank()]
        self._logger.done(self._number, source)
        self._over = True
        return waited

    def is_completed(self) -> bool:
        """Whether the call is over."""
        completed: bool = self.inner.is_completed()
        if completed and not self._over:
            self._asked()
            if self._call.is_message:
                self._logger.done(self._number)
        return completed

    def is_success(self) -> bool:
        """Whether the call is over and went well."""
        success: bool = self.inner.is_success()
        return success

    def exception(self) -> Any:
        """What went wrong with the call."""
        return self.inner.exception()

    def result(self) -> Any:
        """The tensors that the call wrote."""
        return self.inner.result()

    def synchronize(self) -> None:
        """Have the current stream wait for the call."""
        self.inner.synchronize()

    def block_current_stream(self) -> None:
        """Have the current stream wait for the call."""
        self.inner.block_current_stream()

    def source_rank(self) -> int:
        """Who sent what a receive from anyone received, as a position in the group."""
        rank: int = self.inner._source_rank()
        return rank

    _source_rank = source_rank

    def get_future(self) -> Any:
        """The inner call's future."""
        self.waited_for = True
        self._asked()
        return self.inner.get_future()

    def _asked(self) -> None:
        """Log that somebody knows when the call is over, and does not stand still for it."""
        if self._call.asynchronous:
            self._logger.waits(self._number)
            self._logger.resumed(self._number)
