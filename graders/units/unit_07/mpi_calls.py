"""What runs on an MPI rank beside the answer. It is sent there by value, and imports no PyTorch.

MPI is imported where it is used: importing it starts it, and here is no rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

from graders.units.unit_07.waiting import Waiting, patiently

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
                    return patiently(notes.waiting, name, begin, *arguments, **options)
                try:
                    result = method(*arguments, **options)
                except NotImplementedError:
                    raise RuntimeError(f"comm.{name}: the MPI of this machine does not have it.") from None
                if isinstance(result, MPI.Request):
                    notes.begun.append(result)
                return result

            return noted

    return Noting(communicator)


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
