"""The grader's side of one rank: does on the scheduler what the rank's process asks for.

See `graders.host.rank_launch` for the launch, and `graders.guest.rank_process` for the other side.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from course_lib.runtime.communication.call import Operation
from course_lib.runtime.communication.errors import RankTraceback
from course_lib.runtime.communication.events import SourceLine
from course_lib.runtime.simulator.engine import RankStopped
from course_lib.runtime.simulator.thread_driver import ThreadDriver
from graders.grading.answer import FailureKind, PlainData
from graders.grading.text import bounded
from graders.host.fork_server_client import Process
from graders.host.launch_state import MOST_CALLS, LaunchState, RankBroken
from graders.protocol import rank_calls, requests
from graders.protocol.codec import MAX_TENSORS, CodecError, decode, encode
from graders.protocol.framing import ChannelClosed, TooSlow, receive_frame, send_frame
from graders.protocol.records import check_fields, line_from_plain

MOST_HELD = 4 * MAX_TENSORS
"""Bytes of all calls of a rank whose data it has not fetched yet."""

KeepLine = Callable[[str], bool]
"""See `graders.protocol.records.events_from_plain`."""


@dataclass(slots=True)
class _Posted:
    """A call of a rank, and the grader's tensors that its data comes to, until the rank has fetched it."""

    operation: Operation
    outputs: tuple[Tensor, ...] | None
    held: int = field(default=0)


_Handlers = dict[str, Callable[["RankServer", Any], Any]]


class RankServer:
    """Does on the scheduler what one rank asks for, as the rank itself would do in a kernel."""

    def __init__(
        self,
        order: requests.RankRequest,
        process: Process,
        scheduler: ThreadDriver,
        outcome: LaunchState,
        grace: float,
        keep_line: KeepLine,
    ) -> None:
        self._rank = order.rank
        self._channel = process.channel
        self._scheduler = scheduler
        self._outcome = outcome
        self._order = order
        self._end_of_time = time.monotonic() + order.timeout
        self._deadline = self._end_of_time + grace
        self._keep_line = keep_line
        self._posted: list[_Posted] = []
        self._held = 0
        self._error: Exception | None = None
        """What a call came to that the rank has not been told of yet."""
        self._begun = self._over = False

    def run(self) -> None:
        """Serve the rank to its end. A body for `ThreadDriver.run`."""
        try:
            self._begin()
            while not self._over:
                self._serve_calls()
        except TooSlow:
            self._break_off(FailureKind.TIMED_OUT, "did not stop by itself when the time was up")
        except ChannelClosed:
            self._break_off(FailureKind.ENDED, "ended its whole process")
        except CodecError as error:
            self._break_off(FailureKind.UNREADABLE, f"sent what is no message: {error}")
        except Exception as error:  # a body must not raise
            self._break_off(
                FailureKind.UNREADABLE, f"sent what cannot be done: {type(error).__name__}: {error}"
            )

    def release(self) -> None:
        """Have the rank's process be done with the answer, wherever the rank is in the launch."""
        asks = self._begun and not self._over
        with suppress(ChannelClosed, TooSlow):  # it shows when the process is needed
            send_frame(self._channel, encode({"stop": True}) if asks else requests.NO_MORE_REQUESTS)

    def _begin(self) -> None:
        """Send the rank off, at its first turn: where others hang, it need not begin."""
        if self._outcome.places:
            raise RankStopped
        order = replace(self._order, timeout=max(0.01, self._end_of_time - time.monotonic()))
        self._channel.settimeout(max(0.01, self._deadline - time.monotonic()))
        send_frame(self._channel, requests.write_request(order))
        self._begun = True

    def _serve_calls(self) -> None:
        calls = decode(receive_frame(self._channel, max(0.01, self._deadline - time.monotonic())))
        if type(calls) is not list or not calls:
            raise CodecError("it is no list of calls")
        self._outcome.calls_left -= len(calls)
        if self._outcome.calls_left < 0:
            raise CodecError(f"the launch has more than {MOST_CALLS:,} calls")
        for position, call in enumerate(calls):
            name = call.get("do") if type(call) is dict else None
            asks = name in self._QUESTIONS or name in self._ENDS
            if asks != (position == len(calls) - 1):
                raise CodecError("its last call, and no other, must be a question")
            if name in self._QUESTIONS:
                self._reply(self._QUESTIONS[name], call)
            elif name in self._ENDS:
                self._end(self._ENDS[name], call)
            elif name in self._CALLS:
                self._CALLS[name](self, call)
            else:
                raise CodecError(f"there is no call {name!r:.40}")

    def _reply(self, answer: "Callable[[RankServer, Any], dict[str, PlainData]]", call: Any) -> None:
        if self._error is None:
            reply = answer(self, call)
            if self._outcome.places:
                # Another rank has run out of time meanwhile.
                raise RankStopped
        else:
            reply = {"raise": type(self._error).__name__, "message": bounded(str(self._error))}
            self._error = None
        self._channel.settimeout(max(0.01, self._deadline - time.monotonic()))
        # With each reply the rank's clocks, for which it would have to ask at the next phase's ends.
        clocks = {"now": self._scheduler.now(self._rank), "host": self._scheduler.host_now(self._rank)}
        send_frame(self._channel, encode({**reply, **clocks}))

    def _break_off(self, kind: FailureKind, what: str) -> None:
        self._outcome.broken.append(RankBroken(self._rank, kind, what))

    # --- Calls that ask nothing

    def _post(self, call: Any) -> None:
        operation = rank_calls.post_from_plain(call, self._rank, self._group, self._keep_line)
        held = sum(tensor.nbytes for tensor in (*operation.inputs, *operation.outputs) if not tensor.is_meta)
        self._held += held
        if self._held > MOST_HELD:
            raise CodecError(f"its open calls hold more than {MOST_HELD:,} bytes")
        self._posted.append(_Posted(operation, operation.outputs, held))
        try:
            self._scheduler.post(operation)
        except Exception as error:  # tensors that do not go together, as in the rank's own process
            self._error = self._error or error

    def _group(self, name: str, members: Sequence[int]) -> Any:
        if not all(type(member) is int and 0 <= member < len(self._outcome.results) for member in members):
            raise CodecError("a call is in a group of ranks that there are not")
        return self._scheduler.group(name, members)

    def _change(self, call: Any) -> None:
        """The tensors of a call, if nobody has read them yet."""
        check_fields(call, {"do": (str,), "call": (int,), "inputs": (list,)}, "a change")
        operation = self._find(call["call"]).operation
        if operation.done:
            return
        for known, changed in zip(operation.inputs, call["inputs"], strict=True):
            if type(changed) is not Tensor or changed.dtype != known.dtype or changed.shape != known.shape:
                raise CodecError("a change is of another tensor")
            known.copy_(changed)

    def _compute(self, call: Any) -> None:
        check_fields(call, {"do": (str,), "seconds": (list,)}, "a stretch of computing")
        for seconds in call["seconds"]:
            if type(seconds) not in (float, int) or not 0 <= seconds < 1e9:
                raise CodecError("it computes for a time that there is not")
            self._scheduler.compute(self._rank, seconds)

    def _host_wait(self, call: Any) -> None:
        self._scheduler.host_wait(self._rank, *rank_calls.host_wait_from_plain(call, self._keep_line))

    def _stream(self, call: Any) -> None:
        self._scheduler.switch_stream(self._rank, rank_calls.stream_from_plain(call))

    def _span(self, call: Any) -> None:
        check_fields(call, rank_calls.SPAN_FIELDS, "a phase")
        if not 0 <= call["start"] <= call["end"] <= self._scheduler.now(self._rank):
            raise CodecError("a phase has a time that there has not been")
        self._scheduler.record_span(self._rank, bounded(call["label"]), call["start"], call["end"])

    def _memory(self, call: Any) -> None:
        self._scheduler.record_memory(self._rank, *rank_calls.memory_from_plain(call))

    # --- Questions

    def _now(self, _: Any) -> dict[str, PlainData]:
        return {}

    def _copy(self, call: Any) -> dict[str, PlainData]:
        return {"end": self._scheduler.copy(self._rank, *rank_calls.copy_from_plain(call))}

    def _until(self, call: Any) -> dict[str, PlainData]:
        self._scheduler.wait_until(self._rank, rank_calls.clock_from_plain(call))
        return {}

    def _wait(self, call: Any) -> dict[str, PlainData]:
        posted, line = self._about(call)
        self._scheduler.wait(posted.operation, line)
        return self._data(posted)

    def _wait_for_data(self, call: Any) -> dict[str, PlainData]:
        posted, line = self._about(call)
        self._scheduler.wait_for_data(posted.operation, line)
        return self._data(posted)

    def _poll(self, call: Any) -> dict[str, PlainData]:
        posted, line = self._about(call)
        over = self._scheduler.poll(posted.operation, line)
        return {"over": over, **(self._data(posted) if over else {})}

    def _is_done(self, call: Any) -> dict[str, PlainData]:
        check_fields(call, {"do": (str,), "call": (int,)}, "a question")
        return {"over": self._scheduler.is_done(self._find(call["call"]).operation)}

    def _about(self, call: Any) -> tuple[_Posted, SourceLine]:
        check_fields(call, rank_calls.QUESTION_FIELDS, "a question")
        posted = self._find(call["call"])
        line = line_from_plain(call["line"], self._keep_line) or posted.operation.call.line
        return posted, line or rank_calls.NO_LINE

    def _find(self, number: int) -> _Posted:
        if not 0 <= number < len(self._posted):
            raise CodecError("it asks about a call that it has not made")
        return self._posted[number]

    def _data(self, posted: _Posted) -> dict[str, PlainData]:
        outputs, posted.outputs = posted.outputs, None
        self._held, posted.held = self._held - posted.held, 0
        known = outputs is not None and not posted.operation.call.shape_only
        return {"outputs": list(outputs or ()) if known else None, "peer": posted.operation.peer}

    # --- Ends

    def _end(self, end: "Callable[[RankServer, Any], None]", call: Any) -> None:
        if type(call.get("printed")) is not str:
            raise CodecError("it does not say what it printed")
        self._outcome.outputs[self._rank] = bounded(call["printed"])
        end(self, call)
        self._over = True

    def _returned(self, call: Any) -> None:
        check_fields({**call, "value": None}, rank_calls.RETURNED_FIELDS, "a result")
        if self._error is None:
            self._outcome.results[self._rank] = call["value"]
            return
        said = f"{type(self._error).__name__}: {self._error}"
        self._outcome.failures.append(
            RankTraceback(self._rank, type(self._error).__name__, str(self._error), said)
        )

    def _raised(self, call: Any) -> None:
        check_fields(call, rank_calls.RAISED_FIELDS, "a failure")
        type_, message, traceback = (bounded(call[name]) for name in ("type", "message", "traceback"))
        self._outcome.failures.append(RankTraceback(self._rank, type_, message, traceback))

    def _stopped(self, call: Any) -> None:
        check_fields(call, {"do": (str,), "printed": (str,), "lines": (list,)}, "an end")
        if not self._outcome.places:
            lines = [line_from_plain(line, self._keep_line) for line in call["lines"][:50]]
            self._outcome.places[self._rank] = [line for line in lines if line is not None]

    def _unplain(self, call: Any) -> None:
        check_fields(call, {"do": (str,), "printed": (str,), "why": (str,)}, "an end")
        self._break_off(FailureKind.NOT_PLAIN, f"gave what cannot be judged: {bounded(call['why'])}")

    _CALLS: ClassVar[_Handlers] = {
        "post": _post,
        "change": _change,
        "compute": _compute,
        "host_wait": _host_wait,
        "stream": _stream,
        "span": _span,
        "memory": _memory,
    }
    _QUESTIONS: ClassVar[_Handlers] = {
        "now": _now,
        "copy": _copy,
        "until": _until,
        "wait": _wait,
        "data": _wait_for_data,
        "poll": _poll,
        "done": _is_done,
    }
    _ENDS: ClassVar[_Handlers] = {
        "returned": _returned,
        "raised": _raised,
        "stopped": _stopped,
        "unplain": _unplain,
    }
