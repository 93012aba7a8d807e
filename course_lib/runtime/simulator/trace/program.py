"""What the ranks of a run do, written down without being done: the engine of ranks that move shapes only.

Where no message carries data, nothing that a rank receives can change what it does next. So each rank's
function runs straight through, alone, while its calls are recorded; who meets whom, and when, is found out
afterwards (`course_lib.runtime.simulator.trace.replay`). A rank that asks what only time can tell, such as
whether an operation is over by now, cannot be recorded: then the trace is of no use, and the ranks have to
take turns.

Another process can record some of the ranks on its own copy of the trace, and give an `Excerpt` of it.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import torch

from course_lib.runtime.communication.callsite import caller_line
from course_lib.runtime.communication.events import SourceLine
from course_lib.runtime.simulator.network import Group, Move, Network, Operation, Shape
from course_lib.runtime.simulator.rank_threads import RUN_ENDED

_NO_DATA = (torch.empty(0, device="meta"),)
"""Stands for the tensors that an operation would fill."""

POSITION_BITS = 32
"""Bits of a wait that say for which step of the program it is."""

POSITION_MASK = (1 << POSITION_BITS) - 1

RANK_BITS = 20
"""Bits of any other step that say who the peer is: a million ranks."""

RANK_MASK = (1 << RANK_BITS) - 1


class CannotCapture(BaseException):
    """Unwinds a rank that asks what only a run in turns can answer. Not an Exception, as `RankStopped`."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a call is, whichever rank makes it and to whichever peer."""

    op: str
    group: Group
    root: int | None = None
    tag: int = 0
    reduction: str = ""
    shape: Shape | None = None
    parts: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    nbytes: int = 0
    shape_only: bool = False
    asynchronous: bool = False
    fills: bool = False
    """Whether there are tensors that it fills."""
    line: SourceLine | None = None

    @property
    def is_message(self) -> bool:
        """Whether it has one other side, and not a whole group."""
        return self.op in ("send", "recv")

    def operation(self, rank: int, peer: int) -> Operation:
        """The operation that a rank posts; peer: a message's other side."""
        return Operation(
            rank,
            self.op,
            self.group,
            posted=0.0,
            outputs=_NO_DATA if self.fills else (),
            peer=peer if self.is_message else self.root,
            tag=self.tag,
            reduction=self.reduction,
            shape=self.shape,
            parts=self.parts,
            nbytes=self.nbytes,
            shape_only=self.shape_only,
            asynchronous=self.asynchronous,
            line=self.line,
        )


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

_CLOCK_READ = ClockRead()


@dataclass(frozen=True, slots=True)
class Extent:
    """How many entries and lines a trace has."""

    entries: int
    lines: int


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What a copy of a trace has come to hold since it was made."""

    since: Extent
    """What it held then."""
    entries: Sequence[Entry]
    lines: Sequence[SourceLine | None]
    programs: Mapping[int, "array[int]"]
    """Rank -> its program, with places in the copy."""
    refused: str


class TraceProgram:
    """The programs of all ranks, one recorded after the other.

    A program is an array of 64-bit numbers, one a step. A number from 0 up is the place of an `Entry` in
    `entries`, above the RANK_BITS bits of a message's peer. A negative one is a wait: its complement has the
    place of the line in `lines`, above the POSITION_BITS bits of the call's position in the program.
    """

    def __init__(self, network: Network, ranks: int) -> None:
        self.ranks = ranks
        self.entries: list[Entry] = []
        self.lines: list[SourceLine | None] = [None]
        self.programs = [array("q") for _ in range(ranks)]
        self._nobody = array("q")
        self.program = self._nobody
        """That of the rank which is being recorded."""
        self.refused = ""
        """Why there is no trace, if a rank could not be recorded."""
        self.network = network
        self._rank = -1
        self._entry_places: dict[Entry, int] = {}
        self._line_places: dict[SourceLine | None, int] = {None: 0}

    def begin(self, rank: int) -> None:
        """Record this rank from now on."""
        self._rank = rank
        self.program = self.programs[rank]

    def end(self) -> None:
        """No rank is recorded from now on."""
        self.program = self._nobody

    def refuse(self, reason: str) -> NoReturn:
        """End the rank, and with it the recording."""
        self._check_open()
        self.refused = self.refused or reason
        raise CannotCapture(reason)

    # --- Reading

    def step(self, code: int) -> tuple[Entry, int] | Wait:
        """What a number of a program means: an entry with its peer, or a wait."""
        if code < 0:
            return Wait(~code & POSITION_MASK, self.lines[~code >> POSITION_BITS])
        return self.entries[code >> RANK_BITS], code & RANK_MASK

    def operation_at(self, position: int) -> Operation:
        """The call that the rank which is being recorded has posted there."""
        self._check_open()
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
        self._check_open()
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

    def _check_open(self) -> None:
        if self.program is self._nobody:
            raise RuntimeError(RUN_ENDED)
        if self.refused:
            raise CannotCapture(self.refused)

    # --- Copies

    @property
    def extent(self) -> Extent:
        """How much it holds, beside programs."""
        return Extent(len(self.entries), len(self.lines))

    def excerpt(self, ranks: Iterable[int], since: Extent) -> Excerpt:
        """The programs of these ranks, and what has been added for them since the trace had that extent."""
        return Excerpt(
            since,
            self.entries[since.entries :],
            self.lines[since.lines :],
            {rank: self.programs[rank] for rank in ranks},
            self.refused,
        )

    def take_over(self, excerpt: Excerpt) -> None:
        """Hold what the excerpt of a copy holds, as if the ranks had been recorded here."""
        new_entries = [self._place_of_entry(self._with_own_group(entry)) for entry in excerpt.entries]
        new_lines = [self.place_of_line(line) for line in excerpt.lines]
        # Place in the copy -> place here.
        entries = np.array([*range(excerpt.since.entries), *new_entries], dtype=np.int64)
        lines = np.array([*range(excerpt.since.lines), *new_lines], dtype=np.int64)
        for rank, program in excerpt.programs.items():
            codes = np.array(program, dtype=np.int64)
            posts, waits = codes >= 0, codes < 0
            there = codes[posts]
            codes[posts] = entries[there >> RANK_BITS] << RANK_BITS | there & RANK_MASK
            there = ~codes[waits]
            codes[waits] = ~(lines[there >> POSITION_BITS] << POSITION_BITS | there & POSITION_MASK)
            self.programs[rank] = array("q", codes.tobytes())
        self.refused = self.refused or excerpt.refused

    def _with_own_group(self, entry: Entry) -> Entry:
        """The entry of a copy with the group that this trace's ranks hold."""
        if not isinstance(entry, Call):
            return entry
        return replace(entry, group=self.group(entry.group.name, entry.group.members))

    # --- What a rank's process group asks: see `course_lib.runtime.simulator.engine.RankEngine`

    @property
    def communicating(self) -> bool:
        """Never: no data is moved."""
        return False

    def group(self, name: str, members: Sequence[int]) -> Group:
        """The group of this name and these members: the same object for every rank that asks."""
        return self.network.group(name, members)

    def post(self, operation: Operation, move: Move | None = None) -> None:
        """Write the operation down. Its `sequence` becomes its position in the program."""
        if not operation.shape_only and (operation.inputs or operation.outputs):
            self.refuse(f"{operation.op} of a tensor with data")
        is_message = operation.op in ("send", "recv")
        if is_message and operation.peer is None:
            self.refuse("a receive from any rank")
        call = Call(
            operation.op,
            operation.group,
            None if is_message else operation.peer,
            operation.tag,
            operation.reduction,
            operation.shape,
            operation.parts,
            operation.nbytes,
            operation.shape_only,
            operation.asynchronous,
            bool(operation.outputs),
            operation.line,
        )
        peer = operation.peer if is_message else None
        operation.sequence = self.write(call, peer or 0)
        operation.inputs = operation.outputs = ()

    def wait(self, operation: Operation) -> None:
        """Write down that the rank waits."""
        self._check_open()
        line = caller_line() if operation.asynchronous else None
        self.write_wait(operation.sequence, self.place_of_line(line))

    def wait_for_data(self, operation: Operation) -> None:
        """Refused: whoever asks for data apart from time overlaps computing with communication."""
        self.refuse("a future of an operation")

    def poll(self, operation: Operation) -> bool:
        """Refused: only time can tell."""
        self.refuse("a question whether an operation is over")

    def is_done(self, operation: Operation) -> bool:
        """Refused: only time can tell."""
        self.refuse("a question whether an operation is over")

    def compute(self, rank: int, seconds: float) -> None:
        """Write down a charge for computing."""
        self.write(Compute(seconds))

    def now(self, rank: int) -> float:
        """The position of this read in the program: a trace's own time, which `record_span` understands."""
        return self.write(_CLOCK_READ)

    def record_span(self, rank: int, label: str, start: float, end: float) -> None:
        """Write down a phase."""
        self.write(Span(label, int(start), int(end)))
