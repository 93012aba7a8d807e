"""Watches ranks that stay, from cell to cell: a cell is to them what the function is to ranks of a launch."""

import threading
import time
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from course_lib.runtime.communication.events import Event
from course_lib.runtime.processes.agents import Agents
from course_lib.runtime.processes.call_log import RecordParser, now
from course_lib.runtime.processes.observed_run import ObservedRun
from course_lib.runtime.processes.protocol import RankProgress
from course_lib.runtime.processes.watchdog import BadEnding, Watchdog
from course_lib.runtime.request import LaunchRequest

_READ_SECONDS = 0.05
_LAST_BYTES = 4096


class CellWatchdog(Watchdog):
    """Reads what the ranks leave, in a thread of its own; `ending` says why a cell comes to no good end."""

    def __init__(self, request: LaunchRequest, agents: Agents) -> None:
        super().__init__(request, agents)
        self.ending: BadEnding | None = None
        self.over = False
        self._began: float | None = None
        """When the present cell began, on the machine's clock."""
        self._cells: list[tuple[float, float]] = []
        """Begin and end of those before it."""
        self._news = threading.Condition()

    def follow(self) -> None:
        """Read until all is over, or no more can come."""
        while not self.over:
            progress = self._agents.read(_READ_SECONDS)
            with self._news:
                self._take_in(progress)
                if self._began is not None and self.ending is None:
                    self.ending = self._trouble()
                self._news.notify_all()

    def begin(self, ranks: Iterable[int]) -> None:
        """These ranks are about to begin a cell."""
        with self._news:
            self._observed.begin_again(ranks)
            self._trouble_since, self.ending = None, None
            self._last_change = time.monotonic()
            self._began = now()

    def returned(self, rank: int) -> None:
        """A rank has come to the cell's end, and its log will say nothing of it."""
        with self._news:
            self._observed.ranks[rank].returned = now()

    def finish(self, seconds: float, failed: bool = False) -> BadEnding | None:
        """How the cell has ended, unless well. seconds: how long to wait for its ranks' last records.

        failed: not all of them have replied, or one has raised; then it is waited for what is to be said.
        """
        with self._news:
            self._news.wait_for(lambda: self.ending or (not failed and not self._observed.running), seconds)
            mismatches = self._observed.mismatches()
            if self.ending is None and mismatches:
                self.ending = self._mismatched(mismatches[0])
            self._end_cell()
            return self.ending

    def settle(self, seconds: float) -> bool:
        """Wait until all ranks that live have left their cell; whether calls of theirs are open then."""
        with self._news:
            self._end_cell()
            self._news.wait_for(lambda: not self._observed.running, seconds)
            return bool(self._observed.network.unmatched())

    def forget_open(self) -> None:
        """Calls that are open will never be over."""
        with self._news:
            self._observed.forget_open()

    @property
    def dead(self) -> list[int]:
        """The ranks whose processes have ended."""
        with self._news:
            return [view.rank for view in self._observed.ranks if view.exit_code is not None]

    @property
    def lost(self) -> str:
        """Why no more can come of any rank, as a sentence; empty while more can."""
        return self._agents.lost

    def replace(self, ranks: Sequence[int], generation: int) -> None:
        """Have new processes take the places of these ranks."""
        with self._news:
            for rank in ranks:
                self._observed.replace(rank, now())
                self._parsers[rank] = RecordParser()
            self._agents.replace(ranks, generation)

    def kill(self, ranks: Sequence[int], seconds: float) -> None:
        """End the processes of ranks that hear nothing, and wait until they are gone."""
        self._agents.kill(ranks)
        with self._news:
            self._news.wait_for(lambda: set(ranks) <= set(self._gone()), seconds)

    def observed(self) -> tuple[ObservedRun, tuple[Event, ...], float]:
        """What the ranks have done so far, as events too, and in what time: that between cells left out."""
        with self._news:
            present = [] if self._began is None else [(self._began, now())]
            zero = self._observed.zero
            clock = _CellClock([(began - zero, ended - zero) for began, ended in self._cells + present])
            events = tuple(
                replace(event, start=clock(event.start), end=clock(event.end))
                for event in self._observed.events()
            )
            return self._observed, events, clock(float("inf"))

    def _end_cell(self) -> None:
        if self._began is not None:
            self._cells.append((self._began, now()))
            self._began = None

    def _gone(self) -> list[int]:
        return [view.rank for view in self._observed.ranks if view.exit_code is not None]

    def _take_in(self, progress: Sequence[RankProgress]) -> None:
        super()._take_in(progress)
        # What a cell prints comes another way; the last words of a crash come this way.
        for output in self._outputs:
            del output[:-_LAST_BYTES]

    @property
    def _deadline(self) -> float:
        """The present cell's, on the machine's clock."""
        return (now() if self._began is None else self._began) + self._request.timeout


class _CellClock:
    """A clock that stands still between cells, else a timeline would show little but pauses."""

    def __init__(self, cells: Sequence[tuple[float, float]]) -> None:
        """cells: begin and end of each, in their order."""
        self._cells = cells
        self._begins = [began for began, _ in cells]
        self._before = list(accumulate((ended - began for began, ended in cells), initial=0.0))

    def __call__(self, seconds: float) -> float:
        """The time on this clock at a time on the other."""
        number = bisect(self._begins, seconds) - 1
        if number < 0:
            return 0.0
        began, ended = self._cells[number]
        return self._before[number] + min(seconds, ended) - began
