"""A training of simulated ranks to which signals come, each to one rank and at a moment that is given.

Simulated ranks are threads of one process, and a signal comes to a process: so here a signal is a call of the
handler that the rank has set.
"""

import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

GRADIENT_BYTES = 4000
"""What a step's own collective carries."""

_handlers: dict[int, dict[int, Any]] = {}
"""Rank -> signal -> what the rank does on it. All ranks see all of it."""


class Signal(NamedTuple):
    """A signal that comes to a rank.

    moment: "listening": as soon as the rank knows what to do on it; "before", "after": within the step,
    before or after its collective; "waiting": when the rank waits after the step for its next neighbour, who
    is not yet through with it; "saving": while somebody saves, whoever it is.
    """

    moment: str
    step: int
    rank: int
    name: str

    @property
    def number(self) -> int:
        return int(signal.Signals[self.name])

    def come(self, rank: int) -> None:
        """Do what the rank does on it. Raises RuntimeError where a process would be ended."""
        handler = _handlers[rank].get(self.number, signal.SIG_DFL)
        if callable(handler):
            handler(self.number, None)
        elif handler != signal.SIG_IGN:
            said = f"{self.name} came to rank {rank}, which has no handler for it"
            raise RuntimeError(f"{said}: that ends its process.")


class SignalledTraining:
    """One rank's part: what an answer is given, and a record of what it did."""

    def __init__(self, plan: Sequence[Signal]) -> None:
        self.made: list[int] = []
        self.saved: list[list[int]] = []
        self._plan = plan
        self._gradient = torch.zeros(GRADIENT_BYTES // 4)
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        _handlers[self._rank] = {}

    def set_handler(self, number: int, handler: Any) -> Any:
        """As signal.signal, for this rank alone."""
        before = _handlers[self._rank].get(number, signal.SIG_DFL)
        _handlers[self._rank][number] = handler
        for each in self._plan:
            if (each.moment, each.rank, each.number) == ("listening", self._rank, number):
                each.come(self._rank)
        return before

    def train_step(self, step: int) -> None:
        """A step of this rank: a collective, and the signals that come meanwhile."""
        self._deliver("before", step)
        dist.all_reduce(self._gradient)
        self._deliver("after", step)
        for each in self._plan:
            if (each.moment, each.step) == ("waiting", step):
                self._keep_waiting(each)
        self.made.append(step)

    def save(self, done: int) -> None:
        """A checkpoint after `done` steps, as the answer says."""
        self.saved.append([int(done), len(self.made)])
        for each in self._plan:
            if each.moment == "saving":
                each.come(self._rank)

    def _deliver(self, moment: str, step: int) -> None:
        for each in self._plan:
            if (each.moment, each.step, each.rank) == (moment, step, self._rank):
                each.come(self._rank)

    def _keep_waiting(self, told: Signal) -> None:
        """Let the signal come when its rank has gone on, and waits for its neighbour, which is here."""
        neighbour = (told.rank + 1) % self._ranks
        if self._rank == told.rank:
            dist.send(self._gradient, neighbour)
        elif self._rank == neighbour:
            dist.recv(self._gradient, told.rank)
            told.come(told.rank)
