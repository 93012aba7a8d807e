"""What the ranks of a run do, written down without being done: one program a rank, as arrays of numbers.

`course_lib.runtime.simulator.trace.capture` writes them, the replays read them.
"""

from array import array
from dataclasses import dataclass
from typing import NoReturn

from course_lib.runtime.communication.call import Call, Operation
from course_lib.runtime.communication.events import SourceLine
from course_lib.runtime.simulator.rank_threads import RUN_ENDED
from course_lib.runtime.simulator.simulated_network import SimulatedNetwork

POSITION_BITS = 32
"""Bits of a wait that say for which step of the program it is."""

POSITION_MASK = (1 << POSITION_BITS) - 1

RANK_BITS = 20
"""Bits of any other step that say who the peer is: a million ranks."""

RANK_MASK = (1 << RANK_BITS) - 1


class CannotCapture(BaseException):
    """Unwinds a rank that asks what only a run in turns can answer. Not an Exception, as `RankStopped`."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Computing, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ClockRead:
    """The rank reads its clock, to name a phase later."""


@dataclass(frozen=True, slots=True)
class Span:
    """A phase that the program has named, between two reads of the clock, by their positions."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The rank waits for the call that it has posted at a position of its program, in that line."""

    position: int
    line: SourceLine | None


Entry = Call | Compute | ClockRead | Span


class TraceProgram:
    """The programs of all ranks, one captured after the other.

    A program is an array of 64-bit numbers, one a step. A number from 0 up is the place of an `Entry` in
    `entries`, above the RANK_BITS bits of a message's peer. A negative one is a wait: its complement has the
    place of the line in `lines`, above the POSITION_BITS bits of the call's position in the program.
    """

    def __init__(self, network: SimulatedNetwork, ranks: int) -> None:
        self.ranks = ranks
        self.entries: list[Entry] = []
        self.lines: list[SourceLine | None] = [None]
        self.programs = [array("q") for _ in range(ranks)]
        self._nobody = array("q")
        self.program = self._nobody
        """That of the rank which is being captured."""
        self.refused = ""
        """Why there is no trace, if a rank could not be captured."""
        self.network = network
        self._rank = -1
        self._entry_places: dict[Entry, int] = {}
        self._line_places: dict[SourceLine | None, int] = {None: 0}

    def begin(self, rank: int) -> None:
        """Capture this rank from now on."""
        self._rank = rank
        self.program = self.programs[rank]

    def end(self) -> None:
        """No rank is captured from now on."""
        self.program = self._nobody

    def refuse(self, reason: str) -> NoReturn:
        """End the rank, and with it the capture."""
        self.check_open()
        self.refused = self.refused or reason
        raise CannotCapture(reason)

    # --- Reading

    def step(self, code: int) -> tuple[Entry, int] | Wait:
        """What a number of a program means: an entry with its peer, or a wait."""
        if code < 0:
            return Wait(~code & POSITION_MASK, self.lines[~code >> POSITION_BITS])
        return self.entries[code >> RANK_BITS], code & RANK_MASK

    def operation_at(self, position: int) -> Operation:
        """The call that the rank which is being captured has posted there."""
        self.check_open()
        call, peer = self.entries[self.program[position] >> RANK_BITS], self.program[position] & RANK_MASK
        assert isinstance(call, Call)
        operation = call.operation(self._rank, peer)
        operation.sequence = position
        return operation

    # --- Writing

    def place_of_line(self, line: SourceLine | None) -> int:
        """The place of a line in `lines`."""
        place = self._line_places.setdefault(line, len(self.lines))
        if place == len(self.lines):
            self.lines.append(line)
        return place

    def write(self, entry: Entry, peer: int = 0) -> int:
        """Add a step to the program. Returns its position."""
        self.check_open()
        self.program.append(self._place_of_entry(entry) << RANK_BITS | peer)
        return len(self.program) - 1

    def write_wait(self, position: int, place_of_line: int) -> None:
        """Add a wait for the call at a position of the program."""
        self.program.append(~(place_of_line << POSITION_BITS | position))

    def _place_of_entry(self, entry: Entry) -> int:
        place = self._entry_places.setdefault(entry, len(self.entries))
        if place == len(self.entries):
            self.entries.append(entry)
        return place

    def check_open(self) -> None:
        """Raise what ends a rank if nothing is captured any more; RuntimeError in code that is no rank."""
        if self.program is self._nobody:
            raise RuntimeError(RUN_ENDED)
        if self.refused:
            raise CannotCapture(self.refused)
