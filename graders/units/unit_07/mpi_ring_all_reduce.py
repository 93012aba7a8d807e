"""The grader of `mpi_ring_all_reduce`."""

from collections.abc import Iterable

import torch
from torch import Tensor

from graders.grading.communication import only_calls
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_07.drivers import MpiReply
from graders.units.unit_07.mpi_calls import RECEIVES, SENDS
from graders.units.unit_07.mpi_runs import MpiRun, built, changed_in_place, mpi_runs, sums


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
            "to the next place",
            1,
            "Rank r sends to (r + 1) % p only. Who sends each chunk straight to where it belongs goes round "
            "no ring, and needs a connection between any two ranks.",
            needs=("only messages",),
        ),
        Criterion(
            "bytes and messages",
            1,
            "2 (p - 1) messages of one chunk each.",
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
    """On three ranks of a real mpirun, on two of them, and on one."""
    run, narrow = mpi_runs(answer, rng)
    yield "the sum on every rank", built(run, sums(run, [0, 4, 5, 6]))
    yield "any length", (any_length := sums(run, [1, 2, 7]))
    # Of chunks that differ in length the row before this one has told.
    of_dtypes = [3, 10, 8, 9] if any_length.passed else [3, 10]
    yield "any dtype", sums(run, of_dtypes) if narrow.passed else narrow
    yield "in place", changed_in_place(run)
    yield from messages_and_bytes(run)


def to_the_next(run: MpiRun) -> Finding:
    """Passes if every message went to the next rank of the ring, in each case."""
    for case in run.told:
        for rank, told in enumerate(case):
            others = sorted({dest for _, count, _, dest in told.calls if count} - {(rank + 1) % len(case)})
            if others:
                text = f"rank {rank} of {len(case)} sends to {others[0]}"
                return Finding(False, f"{text}; expected all its messages to {(rank + 1) % len(case)}.")
    return Finding(True, "Every message goes to the next rank.")


def all_waited_for(run: MpiRun) -> Finding:
    """Passes if every message that was begun has come to its end when the answer returns."""
    left = max(told.unfinished for case in run.told for told in case)
    text = f"a rank returns without having waited for {compare.counted(left, 'message')} of Isend or Irecv"
    return Finding(not left, f"{text}: call Wait() on each.")


def all_send(run: MpiRun) -> Finding:
    """Passes if each rank that is not alone sends something, by calls that can be seen."""
    quiet = [
        rank
        for case in run.told
        for rank, told in enumerate(case)
        if len(case) > 1 and len(told.array) and not any(count for _, count, *_ in told.calls)
    ]
    text = f"rank {quiet[0]} sends nothing" if quiet else "every rank sends"
    return Finding(
        not quiet, f"{text}, as far as comm's calls tell; expected messages by Send, Isend, Sendrecv."
    )


def messages_and_bytes(run: MpiRun) -> Findings:
    """Which calls were made, and what each rank sent in each case."""
    names = [name for case in run.told for told in case for name, *_ in told.calls]
    calls = only_calls(names, SENDS | RECEIVES, "the answer")
    yield "only messages", compare.first_failure([calls, all_send(run), all_waited_for(run)])
    yield "to the next place", to_the_next(run)
    yield "bytes and messages", compare.first_failure(map(sent_by_ranks, run.cases, run.told))


def sent_by_ranks(given: list[Tensor], told: list[MpiReply]) -> Finding:
    """Passes if no rank sends more messages than two passes round the ring take, and all together each chunk
    as often as these do: in each pass it goes from rank to rank, p - 1 times. Empty ones need no message.
    """
    ranks = len(given)
    chunks = [chunk.nbytes for chunk in torch.tensor_split(given[0], ranks)]
    passes = 2 * (ranks - 1)
    messages = max(sum(count for _, count, *_ in each.calls) for each in told)
    sent = sorted(size for each in told for _, count, size, _ in each.calls if count and size)
    text = (
        f"for {given[0].nbytes:,} bytes on {ranks} ranks a rank sends {messages} messages, and all together "
        f"{sum(sent):,} bytes, in messages of {_sizes(sent)}; expected are at most {passes} messages a rank, "
        f"and {passes * sum(chunks):,} bytes, in messages of {_sizes(chunks)}."
    )
    return Finding(messages <= passes and sent == sorted(filter(None, chunks * passes)), text)


def _sizes(messages: Iterable[int]) -> str:
    """`8, 16 bytes`."""
    return f"{', '.join(f'{size:,}' for size in sorted(set(messages) - {0})) or 'no'} bytes"
