"""Unit 07, the same with MPI: an all-reduce run by mpirun."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.launch.mpi import mpi_missing
from graders.grading import compare
from graders.grading.answer import Answer, PlainData
from graders.grading.exercise import Criterion, Finding, Findings, MachineLacks, exercise
from graders.grading.rng import Rng
from graders.units.unit_07 import UNIT
from graders.units.unit_07.collectives import (
    TOLERANCES,
)


@exercise(
    unit=UNIT,
    name="mpi_ring_all_reduce",
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on every rank", 2, "The same two passes round the ring as with torch.distributed."
        ),
        Criterion(
            "any length", 1, "Chunks are numpy.array_split's; receive into an array of the right size."
        ),
        Criterion("any dtype", 1, "Arrays of your own have x's dtype: numpy.empty_like."),
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        Criterion("only messages", 1, "Send, Recv, Isend, Irecv, Sendrecv; no collective of MPI's."),
        Criterion("bytes and messages", 2, "2 (p - 1) messages of one chunk each."),
    ),
    hints=(
        "comm.Sendrecv(outgoing, dest=right, recvbuf=arriving, source=left) sends and receives at once.",
        "Capital letters (Send, Recv) move the bytes of arrays; send and recv pickle objects.",
    ),
)
def mpi_ring_all_reduce(answer: Answer, rng: Rng) -> Findings:
    """On four ranks of a real mpirun, and on three of them."""
    run = mpi_run(answer, rng)
    yield "the sum on every rank", sums(run, [0, 4])
    yield "any length", sums(run, [1, 2])
    yield "any dtype", sums(run, [3])
    yield "in place", changed_in_place(run)
    yield from messages_and_bytes(run)


RANKS = 4


ALLOWED = frozenset(
    {
        *("Send", "Recv", "Isend", "Irecv", "Sendrecv", "Sendrecv_replace", "Ssend", "Issend"),
        *("send", "recv", "isend", "irecv", "sendrecv", "Probe", "probe"),
    }
)


@dataclass(frozen=True, slots=True)
class MpiRun:
    """Cases, with a tensor for each rank that takes part, and what these told of each: `told[case][rank]`."""

    cases: list[list[Tensor]]
    told: list[list[dict[str, PlainData]]]


def mpi_run(answer: Answer, rng: Rng) -> MpiRun:
    """One run on four ranks, of which the last case has three. Raises MachineLacks where there is no MPI."""
    missing = mpi_missing()
    if missing:
        raise MachineLacks(missing)
    shapes = [
        *((RANKS, 16, torch.float64), (RANKS, 6, torch.float32), (RANKS, 3, torch.float32)),
        *((RANKS, 9, torch.int64), (RANKS - 1, 12, torch.float64)),
    ]
    cases = [[_drawn(rng, length, dtype) for _ in range(ranks)] for ranks, length, dtype in shapes]
    told = answer.call("unit_07.under_mpirun", cases, RANKS)
    by_case = [[rank[case] for rank in told[: len(given)]] for case, given in enumerate(cases)]
    return MpiRun(cases, by_case)


def sums(run: MpiRun, cases: list[int]) -> Finding:
    """Passes if every rank returned the sum in each of `cases`."""
    finding = Finding(False, "there is no result")
    for case in cases:
        total = torch.stack(run.cases[case]).sum(0)
        results = [told["result"] for told in run.told[case]]
        ranks = len(results)
        what = f"what was returned for {len(total)} elements on {ranks} ranks"
        tolerance = TOLERANCES[total.dtype]
        finding = compare.close_on_all_ranks(results, [total] * ranks, what, tolerance, tolerance)
        if not finding.passed:
            return finding
    return finding


def changed_in_place(run: MpiRun) -> Finding:
    """Passes if the array itself was changed and returned."""
    total = torch.stack(run.cases[0]).sum(0)
    arrays = [told["array"] for told in run.told[0]]
    finding = compare.close_on_all_ranks(arrays, [total] * RANKS, "x after the call")
    same = all(told["same"] is True for case in run.told for told in case)
    if finding.passed and not same:
        return Finding(False, "x holds the sum, but another array was returned.")
    return finding


def messages_and_bytes(run: MpiRun) -> Findings:
    """Which calls were made, and what each rank sent in the first case."""
    names = [name for case in run.told for told in case for name, _, _ in told["calls"]]
    yield compare.no_calls(names, sorted(set(names) - ALLOWED), "the answer")
    nbytes = run.cases[0][0].nbytes
    allowed_messages, allowed = 2 * (RANKS - 1), 2 * (RANKS - 1) * nbytes // RANKS
    messages = max(sum(count for _, count, _ in told["calls"]) for told in run.told[0])
    sent = max(sum(size for _, _, size in told["calls"]) for told in run.told[0])
    passed = messages <= allowed_messages and sent <= allowed
    text = (
        f"for {nbytes} bytes on {RANKS} ranks a rank sends {messages} messages of {sent} bytes altogether; "
        f"allowed are at most {allowed_messages} messages and {allowed} bytes."
    )
    yield Finding(passed, text)


def _drawn(rng: Rng, length: int, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return rng.normal(length, dtype=dtype)
    return rng.integers(-(2**58), 2**58, length)
