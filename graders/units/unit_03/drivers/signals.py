"""A training of simulated ranks to which signals come, each to one rank and at a moment that is given.

Simulated ranks may share a process, and a signal comes to a process: so here a signal is a call of the
handler that the rank has set.
"""

import signal
import sys
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from graders.grading.answer import AnswerFunction
from graders.units.unit_03.replies import StopReply

GRADIENT_BYTES = 4000
"""What a step's own collective carries."""

_COLLECTIVES = "torch.distributed.c10d_logger"
"""The module whose wrapper is round each collective."""


class Signal(NamedTuple):
    """A signal that comes to a rank.

    moment: "before", "after": within the step, before or after its collective; "told": when the next
    collective after the step has returned, before the line that follows; "saving": while somebody saves.
    """

    moment: str
    step: int
    rank: int
    name: str


class SignalledTraining:
    """One rank's part: what an answer is given, and a record of what it did."""

    def __init__(self, steps: int, plan: Sequence[Signal]) -> None:
        self._steps = steps
        self.made: list[int] = []
        self.saved: list[list[int]] = []
        self._plan = plan
        self._gradient = torch.zeros(GRADIENT_BYTES // 4)
        self._rank = dist.get_rank()
        self._handlers: dict[int, Any] = {}

    def set_handler(self, number: int, handler: Any) -> Any:
        """As signal.signal, for this rank alone."""
        before = self._handlers.get(number, signal.SIG_DFL)
        self._handlers[number] = handler
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
    def unset(self) -> list[str]:
        """Names of the signals without a handler."""
        watched = (signal.SIGTERM, signal.SIGUSR1)
        return [each.name for each in watched if not callable(self._handlers.get(each))]

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
        """Call the rank's handler; if it listens to the other signal only, that one comes.
        Raises RuntimeError where a process would be ended.
        """
        number = signal.Signals[told.name]
        for each in (number, *self._handlers):
            if callable(self._handlers.get(each)):
                self._handlers[each](each, None)
                return
        if self._handlers.get(number) != signal.SIG_IGN:
            raise RuntimeError(f"{told.name} ends rank {self._rank}, which has no handler for it.")


def told_to_stop(
    answer: AnswerFunction, steps: int, plan: list[tuple[str, int, int, str]], again: bool
) -> StopReply:
    """A rank of a training in which signals come. plan: each as moment, step, rank, name; see `Signal`.

    again: whether this process had a training before, which was stopped.
    """
    if again:
        earlier = SignalledTraining(steps, [Signal("before", 0, 0, "SIGTERM")])
        answer(earlier.train_step, steps, earlier.save, earlier.set_handler)
    training = SignalledTraining(steps, [Signal(*each) for each in plan])
    returned = answer(training.train_step, steps, training.save, training.set_handler)
    return StopReply(returned, training.made, training.saved, training.unset)
