"""A captured run carried out: the same network, the same order of turns, and no threads."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic

from course_lib.runtime.communication.call import Call, Operation
from course_lib.runtime.communication.events import Kind
from course_lib.runtime.simulator.engine import Ending, RankStopped
from course_lib.runtime.simulator.rank_threads import rare_collections
from course_lib.runtime.simulator.trace.program import ClockRead, Compute, Span, TraceProgram, Wait
from course_lib.runtime.simulator.virtual_time import VirtualTime

_TURNS_A_LOOK = 1000
"""So many turns pass between two looks at the real clock."""


@dataclass(slots=True)
class Replay:
    """The ranks of a trace, each a generator that yields when it gives its turn away."""

    trace: TraceProgram
    virtual_time: VirtualTime
    incomplete: frozenset[int] = frozenset()
    """Ranks whose programs were cut short: at their end they stop, and have not finished."""
    ended: dict[int, None] = field(default_factory=dict)
    """After a run: the ranks that came to the end of their programs, in that order."""
    reached: list[int] = field(init=False)
    """After a run: how many steps of its program each rank has begun."""

    def __post_init__(self) -> None:
        self.reached = [0] * self.trace.ranks

    def run(self, timeout: float) -> Ending:
        """Carry out all programs, to their ends, or until no rank can go on, or for `timeout` seconds."""
        deadline = monotonic() + timeout
        ranks = [self._rank(rank) for rank in range(self.trace.ranks)]
        number = 0
        with rare_collections():
            while (due := self.virtual_time.next()) is not None:
                next(ranks[due], None)
                number += 1
                if number % _TURNS_A_LOOK == 0 and monotonic() > deadline:
                    return Ending.OUT_OF_TIME
        return Ending.FINISHED if self.virtual_time.all_done else Ending.STUCK

    def steps_done(self, rank: int) -> int:
        """After a run: how many steps of its program the rank has behind it, and one more if that is all."""
        state, reached = self.virtual_time.ranks[rank], self.reached[rank]
        inside = reached < len(self.trace.programs[rank]) or state.waits_for is not None or state.lost
        return reached - 1 if inside and rank not in self.ended else len(self.trace.programs[rank]) + 1

    def _rank(self, rank: int) -> Iterator[None]:
        """One rank's program, from its first turn to its last."""
        try:
            yield from self._steps(rank)
            if rank in self.incomplete:
                return
            self.ended[rank] = None
            yield from self.virtual_time.end_computing(rank)
        except RankStopped:
            return
        self.virtual_time.ranks[rank].finished = True

    def _steps(self, rank: int) -> Iterator[None]:
        time, state, step = self.virtual_time, self.virtual_time.ranks[rank], self.trace.step
        posted: dict[int, Operation] = {}
        clock_reads: dict[int, float] = {}
        for position, code in enumerate(self.trace.programs[rank]):
            self.reached[rank] = position + 1
            match step(code):
                case Wait(called, line):
                    yield from time.wait(posted[called], line)
                case Call() as call, peer:
                    posted[position] = call.operation(rank, peer)
                    yield from time.post(posted[position])
                case Compute(seconds), _:
                    time.compute(rank, seconds)
                case ClockRead(), _:
                    clock_reads[position] = state.clock
                case Span(label, start, end), _:
                    time.record(rank, label, Kind.SPAN, clock_reads[start], clock_reads[end])
