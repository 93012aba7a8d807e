"""A training of simulated ranks to which signals come, each to one rank and at a moment that is given.

Simulated ranks may share a process, and a signal comes to a process: so here a signal is a call of the
handler that the rank has set.
"""

import inspect
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from graders.grading.answer import AnswerFunction
from graders.units.unit_03.kept_outside import changed, variables_of

GRADIENT_BYTES = 4000
"""What a step's own collective carries."""

_WATCHED = (signal.SIGTERM, signal.SIGUSR1)

_COLLECTIVES = "torch.distributed.c10d_logger"
"""The module whose wrapper is round each collective."""


class Signal(NamedTuple):
    """A signal that comes to a rank.

    moment: "listening": as soon as the rank knows what to do on it; "before", "after": within the step,
    before or after its collective; "told": when the next collective after the step has returned, before the
    line that follows; "saving": while somebody saves, whoever it is; "line": before a line of the answer, of
    those that run when there is a handler; step is which of them, counted from 1.
    """

    moment: str
    step: int
    rank: int
    name: str

    @property
    def number(self) -> int:
        return int(signal.Signals[self.name])


class SignalledTraining:
    """One rank's part: what an answer is given, and a record of what it did.

    outside: names of the answer's module's variables that its handlers have changed. line: before which line
    of the answer a signal came, counted from its first; 0: before none. after: how many steps it had made.
    """

    def __init__(self, answer: AnswerFunction, steps: int, plan: Sequence[Signal]) -> None:
        self._answer = answer
        self._steps = steps
        self.made: list[int] = []
        self.saved: list[list[int]] = []
        self.outside: list[str] = []
        self.line = self.after = 0
        self._lines = 0
        self._plan = plan
        self._gradient = torch.zeros(GRADIENT_BYTES // 4)
        self._rank = dist.get_rank()
        self._handlers: dict[int, Any] = {}
        self._ever_set: set[int] = set()

    @contextmanager
    def counting_lines(self) -> Iterator[None]:
        """While the answer runs: signals come before its lines."""
        planned = [each for each in self._plan if (each.moment, each.rank) == ("line", self._rank)]
        code = getattr(inspect.unwrap(self._answer), "__code__", None)
        if not planned or code is None:
            yield
            return

        def trace(frame: FrameType, event: str, _argument: Any) -> Any:
            if frame.f_code.co_filename != code.co_filename:
                return None
            if event == "line" and all(callable(self._handlers.get(each.number)) for each in planned):
                self._lines += 1
                for each in planned:
                    if each.step == self._lines:
                        self.line, self.after = frame.f_lineno - code.co_firstlineno + 1, len(self.made)
                        self._come(each)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def set_handler(self, number: int, handler: Any) -> Any:
        """As signal.signal, for this rank alone."""
        before = self._handlers.get(number, signal.SIG_DFL)
        self._handlers[number] = handler
        if callable(handler):
            self._ever_set.add(int(number))
        for each in self._plan:
            if (each.moment, each.rank, each.number) == ("listening", self._rank, number):
                self._come(each)
        return before

    def train_step(self, step: int) -> None:
        """A step of this rank: a collective, and the signals that come meanwhile.

        Raises RuntimeError for one that the training has not: it might go on for ever.
        """
        if not 0 <= step < self._steps:
            raise RuntimeError(f"train_step({step}): there is no such step, steps is {self._steps}.")
        self._deliver("before", step)
        dist.all_reduce(self._gradient)
        self._deliver("after", step)
        for each in self._plan:
            if (each.moment, each.step, each.rank) == ("told", step, self._rank):
                sys.setprofile(partial(self._when_told, each))
        self.made.append(step)

    def save(self, done: int) -> None:
        """A checkpoint after `done` steps, as the answer says."""
        self.saved.append([int(done), len(self.made)])
        for each in self._plan:
            if each.moment == "saving":
                self._come(each)

    @property
    def deaf(self) -> list[str]:
        """Names of the signals on which nothing is done, or the process ends."""
        return [each.name for each in _WATCHED if not callable(self._handlers.get(each))]

    @property
    def unset(self) -> list[str]:
        """Names of the signals for which there never was a handler."""
        return [each.name for each in _WATCHED if each not in self._ever_set]

    def _deliver(self, moment: str, step: int) -> None:
        for each in self._plan:
            if (each.moment, each.step, each.rank) == (moment, step, self._rank):
                self._come(each)

    def _when_told(self, told: Signal, frame: FrameType, event: str, _argument: Any) -> None:
        """What Python calls where a function of this rank returns, until a collective has returned."""
        if event == "return" and frame.f_globals.get("__name__") == _COLLECTIVES:
            sys.setprofile(None)
            self._come(told)

    def _come(self, told: Signal) -> None:
        """Do what this rank does on the signal. Raises RuntimeError where a process would be ended."""
        handler = self._handlers.get(told.number, signal.SIG_DFL)
        if callable(handler):
            before = variables_of(self._answer)
            handler(told.number, None)
            self.outside += changed(before, variables_of(self._answer))
        elif handler != signal.SIG_IGN:
            said = f"{told.name} came to rank {self._rank}, which has no handler for it"
            raise RuntimeError(f"{said}: that ends its process.")
