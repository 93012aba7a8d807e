"""A rank's calls as notes in its journal: when each is made, waited for and over."""

import itertools
import threading
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from course_lib.runtime.communication.callsite import caller_line
from course_lib.runtime.processes.call_log import (
    CallLog,
    Done,
    Posted,
    Resumed,
    Spanned,
    Waits,
    now,
    place_of,
)
from course_lib.runtime.processes.completion import CompletionPoller

_NO_TIMEOUT = timedelta(0)
"""What torch passes for "wait as long as the group's timeout says"."""


class CallLogger:
    """Numbers a rank's calls and writes them to its journal."""

    def __init__(self, journal: CallLog) -> None:
        self._journal = journal
        self._numbers = itertools.count()
        self._main_thread = threading.get_ident()
        self._poller = CompletionPoller(self.done)

    def posted(
        self,
        op: str,
        group: str,
        members: tuple[int, ...],
        *,
        peer: int | None = None,
        tag: int = 0,
        reduction: str = "",
        shape: tuple[str, tuple[int, ...]] | None = None,
        parts: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        nbytes: int = 0,
        asynchronous: bool = False,
    ) -> int:
        """Note a call that is about to be made. Returns its number."""
        number = next(self._numbers)
        place = place_of(caller_line())
        self._journal.write(
            Posted(
                number,
                now(),
                op,
                group,
                members,
                peer,
                tag,
                reduction,
                shape,
                parts,
                nbytes,
                asynchronous,
                not asynchronous and self._is_main_thread(),
                place,
            )
        )
        return number

    def waits(self, number: int) -> None:
        """Note that the rank waits. Only the main thread counts: a rank is stuck when that is."""
        if self._is_main_thread():
            self._journal.write(Waits(number))

    def _is_main_thread(self) -> bool:
        return threading.get_ident() == self._main_thread

    def done(self, number: int, source: int | None = None) -> None:
        """Note that a call is over."""
        self._journal.write(Done(number, now(), source))

    def resumed(self, number: int) -> None:
        """Note that a wait has ended and the call has not."""
        self._journal.write(Resumed(number))

    def log_end_on_gpu(self, number: int, work: Any) -> None:
        """Note the end of a call when it comes. Its future tells only that its kernel is queued."""
        self._poller.watch(number, work)

    def log_end(self, number: int, work: Any) -> None:
        """Note the end of an asynchronous collective when it comes, whether or not somebody waits for it."""
        work.get_future().add_done_callback(lambda future: self._ended(number, future))

    def settle(self) -> None:
        """Return when the ends of all calls on GPUs that are over are noted."""
        self._poller.drain()

    def _ended(self, number: int, future: Any) -> None:
        try:
            future.value()
        except RuntimeError:
            self.resumed(number)
        else:
            self.done(number)

    # --- What `course_lib.runtime.communication.events.span` asks of an engine

    def now(self) -> float:
        """Seconds on the machine's clock."""
        return now()

    def record_span(self, label: str, start: float, end: float) -> None:
        """Note a phase of the program."""
        self._journal.write(Spanned(label, start, end))


@dataclass(frozen=True, slots=True)
class Call:
    """A call that has been noted and is about to be made."""

    number: int
    asynchronous: bool
    on_gpu: bool
    is_message: bool = False


SECOND_WAIT = (
    "This send or receive has been waited for before. Here the second wait() returns, with Gloo alone it "
    "never does: wait for each handle once."
)


class LoggedWork(dist.Work):
    """The handle of a call: the inner one, with notes of when somebody waits for it and when it is over."""

    def __init__(
        self,
        inner: Any,
        recorder: CallLogger,
        call: Call,
        members: tuple[int, ...] | None = None,
    ) -> None:
        """members: global ranks of the group, for a receive from anyone only."""
        super().__init__()
        self._inner = inner
        self._recorder = recorder
        self._call = call
        self._members = members
        self._over = False

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until the call is over; on a GPU, until the current stream would wait for it."""
        if self._over and self._call.is_message:
            warnings.warn(SECOND_WAIT, RuntimeWarning, stacklevel=2)
            return True
        if self._call.asynchronous:
            self._recorder.waits(self._call.number)
        try:
            waited: bool = self._inner.wait(timeout)
        except BaseException:
            self._recorder.resumed(self._call.number)
            raise
        if self._call.on_gpu:
            self._recorder.resumed(self._call.number)
            return waited
        source = None if self._members is None else self._members[self._inner._source_rank()]
        self._recorder.done(self._call.number, source)
        self._over = True
        return waited

    def is_completed(self) -> bool:
        """Whether the call is over."""
        completed: bool = self._inner.is_completed()
        return completed

    def is_success(self) -> bool:
        """Whether the call is over and went well."""
        success: bool = self._inner.is_success()
        return success

    def exception(self) -> Any:
        """What went wrong with the call."""
        return self._inner.exception()

    def result(self) -> Any:
        """The tensors that the call wrote."""
        return self._inner.result()

    def synchronize(self) -> None:
        """Have the current stream wait for the call."""
        self._inner.synchronize()

    def block_current_stream(self) -> None:
        """Have the current stream wait for the call."""
        self._inner.block_current_stream()

    def source_rank(self) -> int:
        """Who sent what a receive from anyone received, as a position in the group."""
        rank: int = self._inner._source_rank()
        return rank

    _source_rank = source_rank

    def get_future(self) -> Any:
        """The inner call's future."""
        return self._inner.get_future()
