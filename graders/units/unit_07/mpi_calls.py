"""What runs on an MPI rank beside the answer. It is sent there by value, and imports no PyTorch.

MPI is imported where it is used: importing it starts it, and here is no rank.
"""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 8.0
"""Seconds that a Send or Recv waits for the other rank before it is taken for a deadlock."""
_SENDING = ("Send", "Isend", "Ssend", "Issend", "Bsend", "Ibsend", "Rsend", "Irsend", "Sendrecv")
SENDS = frozenset({*_SENDING, *(name.lower() for name in _SENDING), "Sendrecv_replace"})
RECEIVES = frozenset({"Recv", "Irecv", "recv", "irecv", "Probe", "Iprobe", "probe", "iprobe"})
_KINDS = ("Allreduce", "Reduce", "Bcast", "Gather", "Allgather", "Scatter", "Alltoall", "Barrier")
COLLECTIVES = frozenset(
    {
        *(form for kind in _KINDS for form in (kind, kind.lower(), f"I{kind.lower()}", f"{kind}v")),
        *("Reduce_scatter", "Reduce_scatter_block"),
    }
)
Call = tuple[str, int, int]


def play(comm: Any, answer: Callable[..., Any], cases: list[list[Any]]) -> list[tuple[Any, ...]]:
    """Let the answer work on each case's array of this rank, with a communicator that notes every call.

    cases: arrays, by case and rank. Returns for each case the result, the array afterwards, whether the
    result is the array itself, the calls as (name, bytes sent, to whom), and how many messages were begun
    and never waited for.
    """
    from mpi4py import MPI

    told = []
    for arrays in cases:
        array = arrays[comm.Get_rank()].copy()
        calls: list[Call] = []
        begun: list[Any] = []
        result = answer(_noting(comm, calls, begun), array)
        unfinished = sum(request != MPI.REQUEST_NULL for request in begun)
        told.append((result, array, result is array, list(calls), unfinished))
        comm.Barrier()
    return told


def _noting(communicator: Any, calls: list[Call], begun: list[Any]) -> Any:
    """The communicator, noting which of its methods are called, what they send to whom, and what they begin;
    so does a copy of it.
    """
    from mpi4py import MPI

    class Noting(MPI.Intracomm):
        def __getattribute__(self, name: str) -> Any:
            if name == "Dup":
                return lambda: _noting(communicator.Dup(), calls, begun)
            method = super().__getattribute__(name)
            if name not in SENDS | RECEIVES | COLLECTIVES:
                return method

            def noted(*arguments: Any, **options: Any) -> Any:
                sent = options.get("sendbuf", options.get("buf", arguments[0] if arguments else None))
                dest = options.get("dest", arguments[1] if len(arguments) > 1 else -1)
                calls.append((name, _size_of(sent), int(dest)) if name in SENDS else (name, 0, -1))
                if name in ("Send", "Recv"):
                    begin = super(Noting, self).__getattribute__("Issend" if name == "Send" else "Irecv")
                    return _wait(name, begin(*arguments, **options))
                result = method(*arguments, **options)
                if isinstance(result, MPI.Request):
                    begun.append(result)
                return result

            return noted

    return Noting(communicator)


def _wait(name: str, request: Any) -> None:
    """Wait as MPI's Send or Recv does, but not for ever; a Send returns when its message is received."""
    end = time.monotonic() + PATIENCE
    while not request.Test():
        if time.monotonic() > end:
            raise RuntimeError(
                f"{name} has waited {PATIENCE:.0f} s for the other rank. Look for sends that all wait for "
                "their receivers, or for a receive without a send."
            )
        time.sleep(1e-4)


def _size_of(buffer: Any) -> int:
    """Bytes of an array, or of the array in a buffer specification such as [array, MPI.DOUBLE]."""
    from mpi4py import MPI

    array = buffer[0] if isinstance(buffer, list | tuple) and buffer else buffer
    return int(getattr(array, "nbytes", len(MPI.pickle.dumps(buffer))))
