"""The grader of `mpi_ring_all_reduce`."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from course_lib.launch.mpi import mpi_missing
from graders.grading.communication import only_calls
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    MachineLacks,
    Rng,
    compare,
    exercise,
)
from graders.units.unit_07 import drivers
from graders.units.unit_07.cases import Setting, numbers
from graders.units.unit_07.drivers import MpiReply
from graders.units.unit_07.mpi_calls import COLLECTIVES, RECEIVES, SENDS

RANKS = 3
# Chunks of 80 KB: a blocking send of so much returns only when somebody receives.
EVEN = [Setting(RANKS, length=length, dtype=torch.float64) for length in (12, 30_000)]
UNEVEN = [Setting(RANKS, length=length, dtype=torch.float64) for length in (5, 2)]
DTYPES = [Setting(RANKS, length=6, dtype=torch.int64), Setting(RANKS, length=9)]


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on every rank",
            2,
            "The same two passes round the ring as with torch.distributed, by messages. If all Send first, "
            "all wait: use Sendrecv, or Isend, Recv, Wait.",
        ),
        Criterion(
            "any length", 1, "Chunks are numpy.array_split's; receive into an array of the right size."
        ),
        Criterion("any dtype", 1, "Arrays of your own have x's dtype: numpy.empty_like."),
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        Criterion(
            "only messages",
            1,
            "Send, Recv, Isend, Irecv, Sendrecv, and a Wait for each Isend and Irecv; no collective.",
        ),
        Criterion(
            "bytes and messages",
            2,
            "2 (p - 1) messages of one chunk each, all from rank r to (r + 1) % p.",
            needs=("any length", "any dtype", "only messages"),
        ),
    ),
    hints=(
        "Which call of MPI's sends and receives at once? comm.Sendrecv(outgoing, dest=right, "
        "recvbuf=arriving, source=left).",
        "Capital letters (Send, Recv) move the bytes of arrays; send and recv pickle objects.",
    ),
)
def mpi_ring_all_reduce(answer: Answer, rng: Rng) -> Findings:
    """On three ranks of a real mpirun."""
    if missing := mpi_missing():
        raise MachineLacks(missing)
    cases = played(answer, rng, EVEN + UNEVEN + DTYPES)
    calls = [name for _, told in cases for each in told for name, *_ in each.calls]
    even = compare.first_failure(summed(case) for case in cases[: len(EVEN)])
    if called := sorted(set(calls) & COLLECTIVES):
        even = Finding(False, f"the answer calls {', '.join(called)}; expected messages.")
    yield "the sum on every rank", even
    yield "any length", compare.first_failure(summed(case) for case in cases[len(EVEN) : -len(DTYPES)])
    yield "any dtype", compare.first_failure(summed(case) for case in cases[-len(DTYPES) :])
    yield "in place", compare.first_failure(in_place(case) for case in cases)
    yield "only messages", only_messages(calls, cases)
    yield "bytes and messages", compare.first_failure(round_the_ring(case) for case in cases)


Played = tuple[list[Tensor], list[MpiReply]]
"""The arrays [length] of a case, and what became of them, by rank."""


def played(answer: Answer, rng: Rng, settings: list[Setting]) -> list[Played]:
    """One run with all of these."""
    given = [numbers(rng, setting) for setting in settings]
    everyone = answer.call(drivers.under_mpirun, given, RANKS, timeout=drivers.MPI_SECONDS + 5)
    told = [compare.column(everyone, number, len(given)) for number in range(len(given))]
    return list(zip(given, told, strict=True))


def summed(case: Played) -> Finding:
    """Passes if every rank returned the sum."""
    given, told = case
    total = torch.stack(given).sum(0, dtype=given[0].dtype)
    results = [each.result for each in told]
    return compare.close_on_all_ranks(
        results, [total] * RANKS, f"what was returned for {len(total)} elements"
    )


def in_place(case: Played) -> Finding:
    """Passes if the array itself became the sum and was returned."""
    given, told = case
    if not all(each.same is True for each in told):
        return Finding(False, "another array was returned; expected x itself.")
    return replace(summed(case), seen=f"x itself was returned, of {len(given[0])} elements.")


def only_messages(calls: list[str], cases: list[Played]) -> Finding:
    """Passes if ranks send, do nothing else, and have waited for what they began."""
    quiet = not set(calls) & SENDS
    sends = Finding(not quiet, "comm's calls send nothing; expected messages by Send, Isend, Sendrecv.")
    left = max(each.unfinished for _, told in cases for each in told)
    text = f"a rank returns without having waited for {compare.counted(left, 'message')} of Isend or Irecv"
    waited = Finding(not left, f"{text}: call Wait() on each.")
    return compare.first_failure([only_calls(calls, SENDS | RECEIVES, "the answer"), sends, waited])


def round_the_ring(case: Played) -> Finding:
    """Passes if each rank sends to the next one only, no more messages than two passes take, and all together
    each chunk as often as these do: p - 1 times in each pass. Empty ones need no message.
    """
    given, told = case
    sent = []
    for rank, each in enumerate(told):
        sends = [(nbytes, dest) for name, nbytes, dest in each.calls if name in SENDS]
        if others := {dest for _, dest in sends} - {(rank + 1) % RANKS}:
            return Finding(False, f"rank {rank} sends to {min(others)}; expected {(rank + 1) % RANKS} alone.")
        if len(sends) > 2 * (RANKS - 1):
            return Finding(False, f"rank {rank} sends {len(sends)} messages; expected {2 * (RANKS - 1)}.")
        sent += [nbytes for nbytes, _ in sends if nbytes]
    chunks = [chunk.nbytes for chunk in torch.tensor_split(given[0], RANKS) if len(chunk)]
    text = f"for {given[0].nbytes:,} bytes all ranks together send messages of {sizes(sent)} bytes"
    right = sorted(sent) == sorted(chunks * 2 * (RANKS - 1))
    return Finding(right, f"{text}; expected each of {sizes(chunks)} {2 * (RANKS - 1)} times.")


def sizes(messages: Iterable[int]) -> str:
    """`8, 16`."""
    return ", ".join(f"{size:,}" for size in sorted(set(messages))) or "no"
