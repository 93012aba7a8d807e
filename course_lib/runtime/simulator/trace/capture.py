"""Capturing what ranks without data do: each runs by itself, one after another, waiting for nobody.

Where no message carries data, nothing that a rank receives can change what it does next. So each rank's
function runs straight through, alone, while its calls are written down; who meets whom, and when, is found
out afterwards (`replay` and `batched_replay` beside this module). That comes to what it would come to if the
ranks took turns as threads, event for event; only side effects outside of `torch.distributed`, such as
files, come rank by rank. A rank that asks what only time can tell, such as whether an operation is over by
now, cannot be captured: then the trace program is of no use, and the ranks have to take turns.
"""

import io
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from course_lib.runtime.communication.call import Group, Operation
from course_lib.runtime.communication.callsite import caller_line, stack_lines
from course_lib.runtime.communication.events import SourceLine
from course_lib.runtime.request import LaunchRequest
from course_lib.runtime.simulator.backend import as_with_gloo
from course_lib.runtime.simulator.engine import RankStopped
from course_lib.runtime.simulator.rank_globals import SwappedGlobals
from course_lib.runtime.simulator.rank_main import RankMains
from course_lib.runtime.simulator.rank_threads import (
    GRACE_SECONDS,
    frame_of,
    interrupt,
    rank_thread,
    rare_collections,
)
from course_lib.runtime.simulator.simulated_network import SimulatedNetwork
from course_lib.runtime.simulator.trace.call_cache import installed
from course_lib.runtime.simulator.trace.program import (
    CannotCapture,
    ClockRead,
    Compute,
    Span,
    TraceProgram,
)

_CLOCK_READ = ClockRead()


class CaptureEngine:
    """Writes down what a rank does. See `course_lib.runtime.simulator.engine.RankEngine`."""

    communicating = False
    """Never: no data is moved."""

    def __init__(self, trace: TraceProgram) -> None:
        self.trace = trace

    def group(self, name: str, members: Sequence[int]) -> Group:
        """The group of this name and these members: the same object for every rank that asks."""
        return self.trace.network.group(name, members)

    def post(self, operation: Operation) -> None:
        """Write the operation down. Its `sequence` becomes its position in the program."""
        call = operation.call
        if not call.shape_only and (operation.inputs or operation.outputs):
            self.trace.refuse(f"{call.op} of a tensor with data")
        if call.is_message and operation.peer is None:
            self.trace.refuse("a receive from any rank")
        peer = operation.peer if call.is_message else None
        operation.sequence = self.trace.write(call, peer or 0)
        operation.inputs = operation.outputs = ()

    def wait(self, operation: Operation) -> None:
        """Write down that the rank waits."""
        self.trace.check_open()
        line = caller_line() if operation.call.asynchronous else None
        self.trace.write_wait(operation.sequence, self.trace.place_of_line(line))

    def wait_for_data(self, operation: Operation) -> None:
        """Refused: whoever asks for data apart from time overlaps computing with communication."""
        self.trace.refuse("a future of an operation")

    def poll(self, operation: Operation) -> bool:
        """Refused: only time can tell."""
        self.trace.refuse("a question whether an operation is over")

    def is_done(self, operation: Operation) -> bool:
        """Refused: only time can tell."""
        self.trace.refuse("a question whether an operation is over")

    def compute(self, rank: int, seconds: float) -> None:
        """Write down a charge for computing."""
        self.trace.write(Compute(seconds))

    def now(self, rank: int) -> float:
        """The position of this read in the program: a trace's own time, which `record_span` understands."""
        return self.trace.write(_CLOCK_READ)

    def host_now(self, rank: int) -> float:
        """Refused: a device with a queue is not captured."""
        self.trace.refuse("the host's clock")

    def host_wait(self, rank: int, until: float | None = None) -> None:
        """Nothing: what is captured goes in step with its program."""

    def switch_stream(self, rank: int, number: int) -> None:
        """Refused: what is captured has one stream."""
        self.trace.refuse("another stream")

    def copy(self, rank: int, nbytes: int, to_host: bool, earliest: float) -> float:
        """Refused: when a copy begins, only time can tell."""
        self.trace.refuse("a copy between device and host")

    def wait_until(self, rank: int, clock: float) -> None:
        """Refused, as the copies that a rank would wait for."""
        self.trace.refuse("a wait for a copy")

    def record_span(self, rank: int, label: str, start: float, end: float) -> None:
        """Write down a phase."""
        self.trace.write(Span(label, int(start), int(end)))

    def record_memory(self, rank: int, kind: str, nbytes: int) -> None:
        """Refused: what a rank holds while it waits depends on the others."""
        self.trace.refuse("what a rank holds in memory")


class Transcript(io.StringIO):
    """What a rank prints, with marks of when: a rank that gets stuck has not printed what comes later."""

    def __init__(self, trace: TraceProgram) -> None:
        super().__init__()
        self._trace = trace
        self._marks: list[tuple[int, int]] = []
        """For each write: the steps of the program before it, and its place in the text."""

    def write(self, text: str) -> int:
        self._marks.append((len(self._trace.program), self.tell()))
        return super().write(text)

    def until(self, step: int) -> str:
        """What was written before that step of the rank's program was over."""
        end = next((place for steps, place in self._marks if steps > step), None)
        return self.getvalue()[:end]


class Capture:
    """The ranks of one launch without data: what they do, and what they come to on their own."""

    def __init__(self, request: LaunchRequest, network: SimulatedNetwork) -> None:
        self.trace = TraceProgram(network, request.ranks)
        self.transcripts: list[Transcript] = []
        self._engine = CaptureEngine(self.trace)
        self.mains = RankMains(request, self._engine, stops=(RankStopped, CannotCapture))
        self.captured = 0
        """The ranks below have come to their ends."""
        self.stuck: dict[int, tuple[SourceLine, ...]] = {}
        """Where the rank was that ran when time was over."""
        self._globals = SwappedGlobals(request.cluster, request.ranks, request.seed, self._transcript)
        self._ranks = request.ranks
        self._deadline = time.perf_counter() + request.timeout
        self._given_up = False

    @property
    def whole(self) -> bool:
        """Whether all ranks have come to their ends, none of them with an exception."""
        return self.captured == self._ranks and not self.mains.failures

    @property
    def seconds_left(self) -> float:
        """Of the launch's real time."""
        return self._deadline - time.perf_counter()

    def run(self) -> bool:
        """Capture the ranks, one after another. False if they have to take turns instead."""
        with (
            self._globals.entered(),
            as_with_gloo(),
            installed(self._engine, self.trace),
            rare_collections(),
        ):
            all(self._capture(rank) for rank in range(self._ranks))
        return not self.trace.refused

    def _capture(self, rank: int) -> bool:
        """Run a rank to its end. False if that is the end of the capture."""
        over = threading.Event()
        thread = rank_thread(rank, partial(self._live, rank, self.mains.main(rank), over))
        try:
            thread.start()
            # Not join: when a signal interrupts it, it takes the thread for ended (Python 3.11).
            if not over.wait(max(0.0, self.seconds_left)):
                frame = frame_of(thread)
                if frame is not None:
                    self.stuck = {rank: stack_lines(frame)}
                return False
        finally:
            if not over.is_set():
                self._given_up = True
                interrupt(thread)
            # After an interrupt during `start` it cannot be joined yet; it will see that it is given up.
            if thread.is_alive():
                thread.join(GRACE_SECONDS)
        if self.trace.refused:
            return False
        self.captured = rank + 1
        return True

    def _live(self, rank: int, main: Callable[[], None], over: threading.Event) -> None:
        """A rank's thread. It is a new one for each, for torch keeps much a thread, such as grad mode."""
        if self._given_up:
            return
        self._globals.resume(rank)
        self.trace.begin(rank)
        try:
            main()
        except (RankStopped, CannotCapture):
            pass
        finally:
            self.trace.end()
            self._globals.forget(rank)
            over.set()

    def _transcript(self) -> Transcript:
        self.transcripts.append(Transcript(self.trace))
        return self.transcripts[-1]
