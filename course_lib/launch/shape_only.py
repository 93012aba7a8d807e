"""Ranks without data: recorded one after another, then timed together, so that thousands of them fit.

A launch whose tensor arguments are all meta tensors goes this way. It comes to what it would come to if the
ranks took turns as threads, event for event; only side effects outside of `torch.distributed`, such as
files, come rank by rank.

Where that takes half a second and a core is free, a forked process
(`course_lib.runtime.simulator.trace.forked`) records the later half of the ranks meanwhile. Then side effects
come from both at once, and this process does not see what the other changes in objects that ranks share.
Ranks that raise there, or return what is not plain data, are recorded here after all: an error may come from
the fork alone, and a copy may be less than the original.
"""

import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from course_lib.launch.outcome import CountedOutcome, Outcome
from course_lib.runtime.communication.callsite import stack_lines
from course_lib.runtime.communication.events import SourceLine
from course_lib.runtime.request import LaunchRequest, PerRank
from course_lib.runtime.simulator.backend import as_with_gloo
from course_lib.runtime.simulator.isolation import Isolation
from course_lib.runtime.simulator.rank_main import RankMains
from course_lib.runtime.simulator.rank_threads import (
    GRACE_SECONDS,
    RankStopped,
    frame_of,
    interrupt,
    rank_thread,
    rare_collections,
)
from course_lib.runtime.simulator.thread_driver import Ending
from course_lib.runtime.simulator.trace.batched_replay import replayed_in_batches
from course_lib.runtime.simulator.trace.call_cache import installed
from course_lib.runtime.simulator.trace.forked import forked, has_spare_core
from course_lib.runtime.simulator.trace.program import CannotCapture, Excerpt, TraceProgram
from course_lib.runtime.simulator.trace.replay import Replay
from course_lib.runtime.simulator.virtual_time import VirtualTime

_ALONE_SECONDS = 0.2
"""So long one process records the ranks before it is worth asking how long the others will take."""

_WORTH_SECONDS = 0.4
"""Recording that takes longer is shared with a second process: to fork and to hand over takes hundredths."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)

Marks = list[tuple[int, int]]
"""For each write of a rank: the steps of its program before it, and its place in the text."""


def moves_shapes_only(arguments: Sequence[Any]) -> bool:
    """Whether there are tensors among the arguments of a launch, and all of them are meta tensors."""
    tensors = list(_tensors(arguments))
    return bool(tensors) and all(tensor.is_meta for tensor in tensors)


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        for leaf in tree_leaves(list(value) if isinstance(value, PerRank) else value):
            if isinstance(leaf, torch.Tensor):
                yield leaf
            elif isinstance(leaf, nn.Module):
                yield from leaf.parameters()
                yield from leaf.buffers()


def _is_plain(result: Any) -> bool:
    """Whether what a rank has returned is the same when it comes from another process."""
    return all(
        type(leaf) in _PLAIN or (type(leaf) is torch.Tensor and not leaf.requires_grad)
        for leaf in tree_leaves(result)
    )


def run(request: LaunchRequest) -> Outcome | CountedOutcome | None:
    """Record the ranks and carry out what they have recorded. None if they have to take turns."""
    return _Capture(request).run()


class _Transcript(io.StringIO):
    """What a rank prints, with marks of when: a rank that gets stuck has not printed what comes later."""

    def __init__(self, trace: TraceProgram) -> None:
        super().__init__()
        self._trace = trace
        self._marks: Marks = []

    def write(self, text: str) -> int:
        self._marks.append((len(self._trace.program), self.tell()))
        return super().write(text)

    def until(self, step: int) -> str:
        """What was written before that step of the rank's program was over."""
        end = next((place for steps, place in self._marks if steps > step), None)
        return self.getvalue()[:end]

    def content(self) -> tuple[str, Marks]:
        """What was written, with the marks, to be taken over."""
        return self.getvalue(), self._marks

    def take_over(self, content: tuple[str, Marks]) -> None:
        """Hold what another transcript holds."""
        text, self._marks = content
        super().write(text)


@dataclass(frozen=True, slots=True)
class _Part:
    """What has become of the ranks that another process has recorded."""

    excerpt: Excerpt
    results: list[Any]
    transcripts: list[tuple[str, Marks]]
    recorded: int
    stuck: dict[int, tuple[SourceLine, ...]]


class _Capture:
    """One launch without data."""

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.virtual_time = VirtualTime(request.cluster, request.ranks)
        self.trace = TraceProgram(self.virtual_time.network, request.ranks)
        self.transcripts: list[_Transcript] = []
        self.isolation = Isolation(request.cluster, request.ranks, request.seed, self._transcript)
        self.bodies = RankMains(request, self.trace, stops=(RankStopped, CannotCapture))
        self.recorded = 0
        """The ranks below have come to their ends."""
        self.stuck: dict[int, tuple[SourceLine, ...]] = {}
        """Where the rank was that ran when time was over."""
        self._given_up = False

    def run(self) -> Outcome | CountedOutcome | None:
        """Record all ranks, and carry out what they have recorded."""
        with self.isolation.entered(), as_with_gloo(), installed(self.trace), rare_collections():
            self._record_all()
        if self.trace.refused:
            return None
        if self.recorded == self.request.ranks and not self.bodies.failures:
            messages = replayed_in_batches(self.trace)
            if messages is not None:
                return CountedOutcome(
                    self.request, messages, self.bodies.results, self.isolation.outputs, self.started
                )
        return self._replay()

    def _replay(self) -> Outcome:
        """Carry out what has been recorded, turn by turn."""
        cut_short = frozenset(range(self.recorded, self.request.ranks))
        replay = Replay(self.trace, self.virtual_time, cut_short)
        ending = replay.run(GRACE_SECONDS if cut_short else self._seconds_left())
        if cut_short:
            ending = Ending.OUT_OF_TIME
        ended = set(replay.ended)
        raised = {failure.rank: failure for failure in self.bodies.failures}
        return Outcome(
            self.request,
            ending,
            self.virtual_time,
            [result if rank in ended else None for rank, result in enumerate(self.bodies.results)],
            [self._output(rank, replay) for rank in range(self.request.ranks)],
            [raised[rank] for rank in replay.ended if rank in raised],
            self.virtual_time.waiting(),
            self.started,
            self.stuck,
        )

    def _record_all(self) -> None:
        """Record the ranks, the later half in another process where that is worth while."""
        ranks = range(self.request.ranks)
        for rank in ranks:
            if rank == 1:
                # The first rank is no measure: torch imports what it needs, and calls of each kind are new.
                measured = time.perf_counter()
            if rank > 1 and self._worth_sharing(rank, time.perf_counter() - measured):
                middle = (rank + ranks.stop) // 2
                self._record_shared(ranks[rank:middle], ranks[middle:])
                return
            if not self._record(rank):
                return

    def _worth_sharing(self, rank: int, seconds: float) -> bool:
        """Whether a second process pays for the ranks from `rank` on; seconds: what ranks 1 to there took."""
        left = self.request.ranks - rank
        # Where ranks fail, the other process would be of no use.
        return (
            seconds >= _ALONE_SECONDS
            and seconds / (rank - 1) * left >= _WORTH_SECONDS
            and left > 1
            and not self.bodies.failures
            and has_spare_core()
        )

    def _record_shared(self, earlier: range, later: range) -> None:
        """Record the earlier ranks here while another process records the later ones."""
        with forked(partial(self._part, later)) as answer:
            if not self._record_each(earlier):
                return
            # When time is over, a rank that is stuck there is stopped first, and that takes a moment.
            part = answer(max(0.0, self._seconds_left()) + 3 * GRACE_SECONDS)
        if part is None:
            self._record_each(later)
        else:
            self._take_over(later, part)

    def _part(self, ranks: range) -> _Part | None:
        """In the second process: record these ranks. None if the first has to do it."""
        since = self.trace.extent
        for rank in ranks:
            if not self._record(rank):
                break
            # An error may come from the fork, and not from the student's code.
            if self.bodies.failures or not _is_plain(self.bodies.results[rank]):
                return None
        return _Part(
            self.trace.excerpt(ranks, since),
            [self.bodies.results[rank] for rank in ranks],
            [self.transcripts[rank].content() for rank in ranks],
            self.recorded,
            self.stuck,
        )

    def _take_over(self, ranks: range, part: _Part) -> None:
        """Have what another process has recorded of these ranks."""
        self.trace.take_over(part.excerpt)
        for rank, result, content in zip(ranks, part.results, part.transcripts, strict=True):
            self.bodies.results[rank] = result
            self.transcripts[rank].take_over(content)
        self.recorded, self.stuck = part.recorded, part.stuck

    def _record_each(self, ranks: range) -> bool:
        """Run these ranks, one after another. False if one was the end of the recording."""
        return all(self._record(rank) for rank in ranks)

    def _record(self, rank: int) -> bool:
        """Run a rank to its end. False if that is the end of the recording."""
        over = threading.Event()
        thread = rank_thread(rank, partial(self._live, rank, self.bodies.body(rank), over))
        try:
            thread.start()
            # Not join: when a signal interrupts it, it takes the thread for ended (Python 3.11).
            if not over.wait(max(0.0, self._seconds_left())):
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
        self.recorded = rank + 1
        return True

    def _live(self, rank: int, body: Callable[[], None], over: threading.Event) -> None:
        """A rank's thread. It is a new one for each, for torch keeps much a thread, such as grad mode."""
        if self._given_up:
            return
        self.isolation.resume(rank)
        self.trace.begin(rank)
        try:
            body()
        except (RankStopped, CannotCapture):
            pass
        finally:
            self.trace.end()
            self.isolation.forget(rank)
            over.set()

    def _seconds_left(self) -> float:
        return self.request.timeout - (time.perf_counter() - self.started)

    def _transcript(self) -> _Transcript:
        self.transcripts.append(_Transcript(self.trace))
        return self.transcripts[-1]

    def _output(self, rank: int, replay: Replay) -> str:
        """What the rank had printed when it came to where the replay has left it."""
        state, reached = self.virtual_time.ranks[rank], replay.reached[rank]
        inside = reached < len(self.trace.programs[rank]) or state.waits_for is not None or state.lost
        if inside and rank not in replay.ended:
            return self.transcripts[rank].until(reached - 1)
        return self.transcripts[rank].getvalue()
