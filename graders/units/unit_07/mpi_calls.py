"""What runs on an MPI rank beside the answer. It is sent there by value, and imports no PyTorch.

MPI is imported where it is used: importing it starts it, and here is no rank.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

SENDS = frozenset(
    {
        *("Send", "Isend", "Ssend", "Issend", "Bsend", "Ibsend", "Rsend", "Irsend", "Sendrecv"),
        *("send", "isend", "ssend", "issend", "bsend", "ibsend", "sendrecv", "Sendrecv_replace"),
        *("Isendrecv", "Isendrecv_replace"),
    }
)
RECEIVES = frozenset({"Recv", "Irecv", "recv", "irecv", "Probe", "Iprobe", "probe", "iprobe"})

_KINDS = (
    *("allreduce", "reduce", "bcast", "gather", "allgather", "scatter", "alltoall", "scan", "exscan"),
    *("neighbor_allgather", "neighbor_alltoall"),
)
_FORMS = (("", ""), ("", "v"), ("i", ""), ("i", "v"), ("", "w"))
_IN_SMALL = {prefix + name + suffix for name in _KINDS for prefix, suffix in _FORMS}
COLLECTIVES = frozenset(
    {
        *_IN_SMALL,
        *(name.capitalize() for name in _IN_SMALL),
        *("Reduce_scatter", "Reduce_scatter_block", "Barrier", "barrier", "Ibarrier"),
    }
)
DERIVING = frozenset({"Dup", "Split", "Create", "Create_group", "Create_cart", "Clone", "Sub"})
PLACES = frozenset({"Get_rank", "Get_size", "rank", "size"})
Call = tuple[str, int, int, int]
COMMUNICATION = SENDS | RECEIVES | COLLECTIVES

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


@dataclass
class Notes:
    """What is noted of a case: members is the communicator whose ranks are told."""

    members: Any
    waiting: Waiting
    calls: list[Call]
    begun: list[Any]


def play(comm: Any, answer: Callable[..., Any], cases: list[list[Any]]) -> dict[str, Any]:
    """Let the answer work on each case's array of this rank, with a communicator that notes every call.

    cases: arrays, by case and rank; a case with fewer arrays than there are ranks is for the first ones, in a
    communicator of theirs. Returns for each case the result, the array afterwards, whether the result is the
    array itself, the calls as (name, messages sent, bytes sent, to whom), and how many messages were begun
    and never waited for; None for a case without this rank.
    """
    from mpi4py import MPI

    # Not unittest.mock's patch: importing that takes half as long as importing NumPy.
    module: Any = MPI
    world, module.COMM_WORLD = MPI.COMM_WORLD, _refusing(MPI.COMM_WORLD)
    waiting = Waiting(comm)
    try:
        told = [_play_case(comm, answer, arrays, waiting) for arrays in cases]
    finally:
        module.COMM_WORLD = world
    waiting.end()
    return {"told": told}


def _refusing(world: Any) -> Any:
    """COMM_WORLD, in which nobody can communicate, and which tells no rank: an answer is to use the
    communicator that it is given.
    """
    from mpi4py import MPI

    class Refusing(MPI.Intracomm):
        def __getattribute__(self, name: str) -> Any:
            if name in COMMUNICATION | DERIVING | PLACES:
                raise RuntimeError(
                    f"MPI.COMM_WORLD.{name}: use the communicator that was given, comm.{name}."
                )
            return super().__getattribute__(name)

    return Refusing(world)


def _play_case(
    comm: Any, answer: Callable[..., Any], arrays: list[Any], waiting: Waiting
) -> dict[str, Any] | None:
    from mpi4py import MPI

    rank = comm.Get_rank()
    members = comm.Split(0 if rank < len(arrays) else MPI.UNDEFINED, rank)
    if members == MPI.COMM_NULL:
        waiting.all_meet(comm)
        return None
    array = arrays[rank].copy()
    notes = Notes(members, waiting, [], [])
    result = answer(_noting(notes, members), array)
    unfinished = sum(request != MPI.REQUEST_NULL for request in notes.begun)
    told = {"result": result, "array": array, "same": result is array, "calls": list(notes.calls)}
    waiting.all_meet(comm)
    return told | {"unfinished": unfinished}


def _noting(notes: Notes, communicator: Any) -> Any:
    """The communicator, noting which of its methods are called, what they send to whom, and what they begin;
    so do those that are made from it.
    """
    from mpi4py import MPI

    if communicator == MPI.COMM_NULL:
        return communicator
    kind: Any = MPI.Cartcomm if isinstance(communicator, MPI.Cartcomm) else MPI.Intracomm

    class Noting(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name in DERIVING:
                # The plain communicator's own: it makes plain ones, and not more of this class.
                plain = getattr(communicator, name)
                return lambda *arguments, **options: _noting(notes, plain(*arguments, **options))
            method = super().__getattribute__(name)
            if name not in COMMUNICATION or not callable(method):
                return method

            def noted(*arguments: Any, **options: Any) -> Any:
                sent = options.get("sendbuf", options.get("buf", arguments[0] if arguments else None))
                dest = options.get("dest", arguments[1] if len(arguments) > 1 else None)
                if name in SENDS:
                    to = _rank_in(notes.members, communicator, dest)
                    notes.calls.append((name, 1, _size_of(sent), to))
                else:
                    notes.calls.append((name, 0, 0, -1))
                if name in ("Send", "Recv"):
                    begin = super(Noting, self).__getattribute__("Issend" if name == "Send" else "Irecv")
                    return _patiently(notes.waiting, name, begin, *arguments, **options)
                try:
                    result = method(*arguments, **options)
                except NotImplementedError:
                    raise RuntimeError(f"comm.{name}: the MPI of this machine does not have it.") from None
                if isinstance(result, MPI.Request):
                    notes.begun.append(result)
                return result

            return noted

    return Noting(communicator)


def _patiently(
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


def _rank_in(members: Any, communicator: Any, dest: Any) -> int:
    """The rank among `members` of who has the rank `dest` in a communicator made from it; -1: nobody's."""
    from mpi4py import MPI

    try:
        place = index(dest)  # Of an integer of NumPy's, too.
    except TypeError:
        return -1
    if not 0 <= place < communicator.Get_size():
        return -1
    [rank] = MPI.Group.Translate_ranks(communicator.Get_group(), [place], members.Get_group())
    return int(rank)


def _size_of(buffer: Any) -> int:
    """Bytes of an array, or of the array in a buffer specification such as [array, MPI.DOUBLE]."""
    from mpi4py import MPI

    array = buffer[0] if isinstance(buffer, list | tuple) and buffer else buffer
    return int(getattr(array, "nbytes", len(MPI.pickle.dumps(buffer))))
