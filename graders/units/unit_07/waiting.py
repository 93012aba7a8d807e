"""What MPI ranks wait in, so that each can tell when nobody can go on. It is sent to them by value."""

import time
from collections.abc import Callable
from typing import Any

LOOKS, TURNS = 5, 40
"""That all ranks wait in vain is believed when each has looked so often for its message, so many times over:
what a look sets in motion at one rank, the next look of another sees.
"""
RUNNING = 0
"""What a rank does that waits in no Send or Recv; one that waits has a number, of each call another."""


class Waiting:
    """What every rank waits in, and how often it has looked: in memory that all see, so that each can tell
    when nobody can go on, on a busy machine as on an idle one.
    """

    def __init__(self, comm: Any) -> None:
        import numpy as np
        from mpi4py import MPI

        rank, size = comm.Get_rank(), comm.Get_size()
        self._window = MPI.Win.Allocate_shared(0 if rank else 16 * size, 8, comm=comm)
        shared: Any = self._window.Shared_query(0)[0]
        self._all: Any = np.frombuffer(shared, np.int64).reshape(size, 2)
        self._mine, self._calls, self._turns = self._all[rank], 0, 0
        self._doing = self._looks = self._all.T.copy()[0]
        self._mine[:] = RUNNING
        comm.Barrier()

    def __enter__(self) -> None:
        """A call begins."""
        self._calls += 1
        self._mine[0], self._turns = self._calls, 0

    def __exit__(self, *_: object) -> None:
        self._mine[0] = RUNNING

    def in_vain(self) -> bool:
        """This rank has looked, and its call is not over: whether none ever will be."""
        self._mine[1] += 1
        doing, looks = self._all.T.copy()
        if RUNNING in doing or (doing != self._doing).any():
            self._doing, self._looks, self._turns = doing, looks, 0
        elif (looks >= self._looks + LOOKS).all():
            self._looks, self._turns = looks, self._turns + 1
        return self._turns >= TURNS

    def all_meet(self, comm: Any) -> None:
        """The end of a case: returns when all ranks are there."""
        request = comm.Ibarrier()
        with self:
            while not request.Test():
                self.in_vain()
                time.sleep(1e-4)

    def end(self) -> None:
        """All ranks together."""
        self._mine = self._all = None
        self._window.Free()


def patiently(
    waiting: Waiting, name: str, begin: Callable[..., Any], *arguments: Any, **options: Any
) -> None:
    """A Send that returns when its message is received, whatever its length, or a Recv. Unlike MPI's own it
    sleeps while it waits, and not for ever: raises RuntimeError when no rank can go on.
    """
    status = options.pop("status", None)
    request = begin(*arguments[:3], **options)
    with waiting:
        while not request.Test(*arguments[3:], *([status] if status else [])):
            if waiting.in_vain():
                other = options.get("dest", options.get("source", arguments[1] if arguments[1:] else "any"))
                raise RuntimeError(
                    f"No rank can go on: {name} waits for rank {other}. Look for sends that all wait for "
                    "their receivers, or for a receive without a send."
                )
            time.sleep(1e-4)
