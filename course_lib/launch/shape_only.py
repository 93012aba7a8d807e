"""Ranks without data: recorded one after another, then timed together, so that thousands of them fit.

A launch whose tensor arguments are all meta tensors goes this way. It comes to what it would come to if the
ranks took turns as threads, event for event; only side effects outside of `torch.distributed`, such as
files, come rank by rank.
"""

import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from course_lib.launch import LaunchRequest
from course_lib.launch.endings import Counted, Ended
from course_lib.launch.rank_bodies import RankBodies
from course_lib.launch.run import PerRank
from course_lib.simulator.isolation import Isolation
from course_lib.simulator.process_group import agreed_groups
from course_lib.simulator.replay import Replay
from course_lib.simulator.scheduler import Ending
from course_lib.simulator.shortcuts import installed
from course_lib.simulator.tape import CannotRecord, Tape
from course_lib.simulator.threads import (
    GRACE_SECONDS,
    RankStopped,
    frame_of,
    interrupt,
    rank_thread,
    rare_collections,
)
from course_lib.simulator.turns import Turns
from course_lib.simulator.waves import carried_out
from course_lib.timeline.lines import stack_lines

Stacks = dict[int, FrameType]


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


def run(request: LaunchRequest) -> Ended | Counted | None:
    """Record the ranks and carry out what they have recorded. None if they have to take turns."""
    return _Recording(request).run()


class _Transcript(io.StringIO):
    """What a rank prints, with marks of when: a rank that gets stuck has not printed what comes later."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self._marks: list[tuple[int, int]] = []

    def write(self, text: str) -> int:
        self._marks.append((len(self._tape.program), self.tell()))
        return super().write(text)

    def until(self, step: int) -> str:
        """What was written before that step of the rank's program was over."""
        end = next((place for steps, place in self._marks if steps > step), None)
        return self.getvalue()[:end]


class _Recording:
    """One launch without data."""

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.turns = Turns(request.cluster, request.ranks)
        self.tape = Tape(self.turns.network, request.ranks)
        self.transcripts: list[_Transcript] = []
        self.isolation = Isolation(request.cluster, request.ranks, request.seed, self._transcript)
        self.bodies = RankBodies(request, self.tape, stops=(RankStopped, CannotRecord))
        self.recorded = 0
        """So many ranks have come to their ends."""
        self._given_up = False

    def run(self) -> Ended | Counted | None:
        """Record all ranks, and carry out what they have recorded."""
        with self.isolation.entered(), agreed_groups(), installed(self.tape), rare_collections():
            stacks = self._record()
        if self.tape.refused:
            return None
        if self.recorded == self.request.ranks and not self.bodies.failures:
            messages = carried_out(self.tape)
            if messages is not None:
                return Counted(
                    self.request, messages, self.bodies.results, self.isolation.outputs, self.started
                )
        return self._replay(stacks)

    def _replay(self, stacks: Stacks) -> Ended:
        """Carry out what has been recorded, turn by turn."""
        cut_short = frozenset(range(self.recorded, self.request.ranks))
        replay = Replay(self.tape, self.turns, cut_short)
        ending = replay.run(GRACE_SECONDS if cut_short else self._seconds_left())
        if cut_short:
            ending = Ending.OUT_OF_TIME
        ended = set(replay.ended)
        raised = {failure.rank: failure for failure in self.bodies.failures}
        return Ended(
            self.request,
            ending,
            self.turns,
            [result if rank in ended else None for rank, result in enumerate(self.bodies.results)],
            [self._output(rank, replay) for rank in range(self.request.ranks)],
            [raised[rank] for rank in replay.ended if rank in raised],
            self.turns.waiting(),
            self.started,
            {rank: stack_lines(frame) for rank, frame in stacks.items()},
        )

    def _record(self) -> Stacks:
        """Run the ranks one after another. Returns where the rank was that ran when time was over."""
        for rank in range(self.request.ranks):
            over = threading.Event()
            thread = rank_thread(rank, partial(self._live, rank, self.bodies.body(rank), over))
            try:
                thread.start()
                # Not join: when a signal interrupts it, it takes the thread for ended (Python 3.11).
                if not over.wait(max(0.0, self._seconds_left())):
                    frame = frame_of(thread)
                    return {} if frame is None else {rank: frame}
            finally:
                if not over.is_set():
                    self._given_up = True
                    interrupt(thread)
                thread.join(GRACE_SECONDS)
            if self.tape.refused:
                break
            self.recorded += 1
        return {}

    def _live(self, rank: int, body: Callable[[], None], over: threading.Event) -> None:
        """A rank's thread. It is a new one for each, for torch keeps much a thread, such as grad mode."""
        if self._given_up:
            return
        self.isolation.resume(rank)
        self.tape.begin(rank)
        try:
            body()
        except (RankStopped, CannotRecord):
            pass
        finally:
            self.tape.end()
            self.isolation.forget(rank)
            over.set()

    def _seconds_left(self) -> float:
        return self.request.timeout - (time.perf_counter() - self.started)

    def _transcript(self) -> _Transcript:
        self.transcripts.append(_Transcript(self.tape))
        return self.transcripts[-1]

    def _output(self, rank: int, replay: Replay) -> str:
        """What the rank had printed when it came to where the replay has left it."""
        state, reached = self.turns.ranks[rank], replay.reached[rank]
        inside = reached < len(self.tape.programs[rank]) or state.waits_for is not None or state.lost
        if inside and rank not in replay.ended:
            return self.transcripts[rank].until(reached - 1)
        return self.transcripts[rank].getvalue()
