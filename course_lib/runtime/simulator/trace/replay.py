"""A recorded run carried out: the same network, the same order of turns, and no threads."""

import time
from collections.abc import Generator
from dataclasses import dataclass, field

from course_lib.runtime.communication.events import Kind
from course_lib.runtime.communication.semantics import barrier
from course_lib.runtime.simulator.network import Operation
from course_lib.runtime.simulator.rank_threads import rare_collections
from course_lib.runtime.simulator.thread_driver import Ending
from course_lib.runtime.simulator.trace.program import Call, Charge, Glance, Phase, Tape, Wait
from course_lib.runtime.simulator.virtual_time import Turns

_TURNS_A_LOOK = 1000
"""So many turns pass between two looks at the real clock."""


@dataclass(slots=True)
class Replay:
    """The ranks of a tape, each a generator that yields when it gives its turn away."""

    tape: Tape
    turns: Turns
    incomplete: frozenset[int] = frozenset()
    """Ranks whose programs were cut short: at their end they stop, and have not finished."""
    ended: list[int] = field(default_factory=list)
    """After a run: the ranks that came to the end of their programs, in that order."""
    reached: list[int] = field(init=False)
    """After a run: how many steps of its program each rank has begun."""

    def __post_init__(self) -> None:
        self.reached = [0] * self.tape.ranks

    def run(self, timeout: float) -> Ending:
        """Carry out all programs, to their ends, or until no rank can go on, or for `timeout` seconds."""
        deadline = time.monotonic() + timeout
        ranks = [self._rank(rank) for rank in range(self.tape.ranks)]
        number = 0
        with rare_collections():
            while (due := self.turns.next()) is not None:
                next(ranks[due], None)
                number += 1
                if number % _TURNS_A_LOOK == 0 and time.monotonic() > deadline:
                    return Ending.OUT_OF_TIME
        return Ending.FINISHED if self.turns.all_done else Ending.STUCK

    def _rank(self, rank: int) -> Generator[None, None, None]:
        """One rank's program. What it does at each step is what `Scheduler` does for a thread."""
        turns, state, step = self.turns, self.turns.ranks[rank], self.tape.step
        posted: dict[int, Operation] = {}
        glances: dict[int, float] = {}
        for position, code in enumerate(self.tape.programs[rank]):
            self.reached[rank] = position + 1
            match step(code):
                case Wait(called, line):
                    operation = posted[called]
                    if turns.ends_computing(rank):
                        yield
                    if turns.is_lost(rank):
                        return
                    if turns.must_wait(operation, line):
                        yield
                    turns.deliver(operation)
                    if turns.moves_past_others(rank, operation.end):
                        yield
                case Call() as call, peer:
                    if turns.ends_computing(rank):
                        yield
                    if turns.is_lost(rank):
                        return
                    posted[position] = call.operation(rank, peer)
                    turns.post(posted[position], barrier)
                case Charge(seconds), _:
                    turns.compute(rank, seconds)
                case Glance(), _:
                    glances[position] = state.clock
                case Phase(label, start, end), _:
                    turns.record(rank, label, Kind.SPAN, glances[start], glances[end])
        if rank in self.incomplete:
            return
        self.ended.append(rank)
        if turns.ends_computing(rank):
            yield
        state.finished = not turns.is_lost(rank)
