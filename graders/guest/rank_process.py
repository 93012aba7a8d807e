"""One rank in a process of its own: its calls of `torch.distributed` go to the grader's scheduler and back.

So what the grader counts does not depend on anything that the student's code does to this process. See
`graders.host.rank_server` for the other side.
"""

import builtins
import contextvars
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import _unregister_all_process_groups
from torch.utils._python_dispatch import _disable_current_modes

from course_lib.runtime.communication.call import Group, Operation
from course_lib.runtime.communication.callsite import caller_line, own_lines
from course_lib.runtime.request import LaunchRequest
from course_lib.runtime.simulator.backend import as_with_gloo
from course_lib.runtime.simulator.rank_globals import alone
from course_lib.runtime.simulator.rank_main import RankMains
from graders.grading.answer import PlainData
from graders.grading.text import BoundedText, bounded
from graders.guest.time_limits import ALARMS, OutOfTime, time_limit
from graders.guest.usual_torch import usual_torch
from graders.protocol.codec import NotPlain, decode, encode, in_words
from graders.protocol.framing import receive_frame, send_frame
from graders.protocol.limits import COMPUTING_SECONDS
from graders.protocol.rank_calls import lines_to_plain, post_to_plain
from graders.protocol.records import line_to_plain
from graders.protocol.requests import RankRequest

SERVED = 113
"""The exit status of a process that is done with its answer."""

_HELD_BYTES, _HELD_CALLS = 2**22, 1000
"""So much is kept back at most before the grader is told."""


def play(answer: Any, driver: Callable[..., PlainData], request: RankRequest, channel: socket.socket) -> None:
    """Be the rank: run driver(answer, ...) and tell in the end what became of it."""
    engine = _SocketEngine(channel)
    launch = LaunchRequest(
        driver,
        (),
        request.ranks,
        request.cluster,
        request.timeout,
        request.seed,
        backend=None,
        memory=request.memory,
    )
    mains = RankMains(
        launch,
        engine,
        stops=(OutOfTime,),
        calls=lambda _: lambda: partial(driver, answer(), *request.arguments),
    )
    printed = BoundedText()
    surroundings = alone(request.cluster, request.rank, request.ranks, request.seed, printed)
    with surroundings, as_with_gloo(), usual_torch():
        main = mains.main(request.rank)
        try:
            with time_limit(request.timeout, COMPUTING_SECONDS):
                # In a context of its own, so that afterwards this process is no rank.
                contextvars.copy_context().run(main)
        except OutOfTime as error:
            end: dict[str, PlainData] = {
                "do": "stopped",
                "lines": lines_to_plain(own_lines(traceback.walk_tb(error.__traceback__))),
            }
        else:
            end = _end(mains, request.rank)
        finally:
            # The next launch gives its groups the same names.
            _unregister_all_process_groups()
    engine.close({**end, "printed": printed.text()})


def _end(mains: RankMains, rank: int) -> dict[str, Any]:
    """What the rank came to, as its last call."""
    if mains.failures:
        (failure,) = mains.failures
        told = {name: bounded(getattr(failure, name)) for name in ("type", "message", "traceback")}
        return {"do": "raised", **told}
    value = mains.results[rank]
    try:
        encode(value)
    except NotPlain as error:
        where = in_words("the result", error.path)
        return {"do": "unplain", "why": bounded(f"{where} {error.problem}")}
    return {"do": "returned", "value": value}


class _SocketEngine:
    """See `course_lib.runtime.simulator.engine.RankEngine`. Only questions go to the grader and back.

    Calls that ask nothing are kept until the next question: nobody else could notice them earlier, for in
    virtual time no other rank runs before this one waits.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.communicating = False
        self._channel = channel
        self._lock = threading.RLock()
        self._groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        self._posted = 0
        self._calls: list[dict[str, Any]] = []
        self._held = 0
        self._open: dict[int, tuple[Operation, list[Tensor]]] = {}
        """Asynchronous calls that may not be over, with their inputs as the grader knows them."""
        self._clock: float | None = 0.0
        """This rank's, as the last reply had it; None if it has computed since."""
        self._host_clock = 0.0
        """Its host's, of the same reply."""

    def group(self, name: str, members: Sequence[int]) -> Group:
        key = (name, tuple(members))
        return self._groups.setdefault(key, Group(*key))

    def post(self, operation: Operation) -> None:
        with self._communication():
            inputs = [_copy(tensor) for tensor in operation.inputs]
        with self._lock:
            # The position of the call among this rank's own is the number by which it is asked for.
            operation.sequence, self._posted = self._posted, self._posted + 1
            self._tell(post_to_plain(operation, inputs), sum(tensor.nbytes for tensor in inputs))
        if operation.call.asynchronous and inputs and not operation.call.shape_only:
            self._open[operation.sequence] = (operation, inputs)

    def wait(self, operation: Operation) -> None:
        self._deliver(operation, self._ask_about("wait", operation))

    def wait_for_data(self, operation: Operation) -> None:
        self._deliver(operation, self._ask_about("data", operation))

    def poll(self, operation: Operation) -> bool:
        reply = self._ask_about("poll", operation)
        if reply["over"]:
            self._deliver(operation, reply)
        return bool(reply["over"])

    def is_done(self, operation: Operation) -> bool:
        return bool(self._ask({"do": "done", "call": operation.sequence})["over"])

    def compute(self, rank: int, seconds: float) -> None:
        self._clock = None
        if self._calls and self._calls[-1]["do"] == "compute":
            self._calls[-1]["seconds"].append(seconds)
        else:
            self._tell({"do": "compute", "seconds": [seconds]}, 0)

    def now(self, rank: int) -> float:
        return float(self._ask({"do": "now"})["now"]) if self._clock is None else self._clock

    def host_now(self, rank: int) -> float:
        self.now(rank)
        return self._host_clock

    def host_wait(self, rank: int, until: float | None = None) -> None:
        self._clock = None
        self._tell({"do": "host_wait", "clock": until, "line": line_to_plain(caller_line())}, 0)

    def switch_stream(self, rank: int, number: int) -> None:
        self._clock = None
        self._tell({"do": "stream", "stream": number}, 0)

    def copy(self, rank: int, nbytes: int, to_host: bool, earliest: float) -> float:
        asked: dict[str, Any] = {"do": "copy", "nbytes": nbytes, "to_host": to_host, "earliest": earliest}
        return float(self._ask(asked)["end"])

    def wait_until(self, rank: int, clock: float) -> None:
        self._ask({"do": "until", "clock": clock})

    def record_span(self, rank: int, label: str, start: float, end: float) -> None:
        self._tell({"do": "span", "label": label, "start": start, "end": end}, 0)

    def record_memory(self, rank: int, kind: str, nbytes: int) -> None:
        self._tell({"do": "memory", "kind": kind, "nbytes": nbytes}, 0)

    def close(self, end: dict[str, Any]) -> None:
        """Say the last word, to which there is no reply."""
        try:
            message = encode([*self._calls, end])
        except NotPlain:  # a tensor that could not be sent, and has ended the rank
            message = encode([end])
        send_frame(self._channel, message)

    def _ask_about(self, question: str, operation: Operation) -> dict[str, Any]:
        line = caller_line() if operation.call.asynchronous else None
        return self._ask({"do": question, "call": operation.sequence, "line": line_to_plain(line)})

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send what was kept and the question; returns the reply. Raises what the grader's side raised."""
        with self._lock, _undisturbed(), self._communication():
            send_frame(self._channel, encode([*self._calls, *self._changes(), question]))
            self._calls, self._held = [], 0
            reply: dict[str, Any] = decode(receive_frame(self._channel))
            if "stop" in reply:
                # The launch is over, and nobody asks what would become of this rank.
                os._exit(SERVED)
        self._clock, self._host_clock = float(reply["now"]), float(reply["host"])
        if "raise" in reply:
            kind = getattr(builtins, reply["raise"], RuntimeError)
            raise (kind if issubclass(kind, Exception) else RuntimeError)(reply["message"])
        return reply

    def _tell(self, call: dict[str, Any], nbytes: int) -> None:
        self._calls.append(call)
        self._held += nbytes
        if self._held > _HELD_BYTES or len(self._calls) > _HELD_CALLS:
            self._ask({"do": "now"})

    def _changes(self) -> list[dict[str, Any]]:
        """Inputs of open calls that have changed since: until a call is matched, its tensor is read."""
        changes = []
        for number, (operation, known) in self._open.items():
            inputs = [_copy(tensor) for tensor in operation.inputs]
            if not all(map(torch.equal, inputs, known)):
                self._open[number] = (operation, inputs)
                changes.append({"do": "change", "call": number, "inputs": inputs})
        return changes

    def _deliver(self, operation: Operation, reply: dict[str, Any]) -> None:
        """Fill the caller's tensors. The grader gives each call's data once."""
        operation.done, operation.peer = True, reply["peer"]
        self._open.pop(operation.sequence, None)
        if reply["outputs"] is not None:
            with self._communication():
                for target, source in zip(operation.outputs, reply["outputs"], strict=True):
                    target.detach().copy_(source.view(target.shape))
        operation.inputs = operation.outputs = ()

    @contextmanager
    def _communication(self) -> Iterator[None]:
        """What moves data to the grader and back is not the rank's computing."""
        self.communicating = True
        try:
            yield
        finally:
            self.communicating = False


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no time limit interrupt a question: who waits for others has not run out of its own time."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ALARMS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ALARMS)


def _copy(tensor: Tensor) -> Tensor:
    if tensor.device.type not in ("cpu", "meta"):
        with _disable_current_modes():
            tensor = tensor.detach().cpu()
    return tensor.detach().clone(memory_format=torch.contiguous_format).as_subclass(Tensor)
