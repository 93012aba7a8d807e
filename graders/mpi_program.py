"""What unit 07's graders expect of an all-reduce written with mpi4py, run by mpirun."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.launch.mpi import mpi_missing
from graders import judge
from graders.answer import Answer, PlainData
from graders.collectives import TOLERANCES
from graders.draw import Draw
from graders.exercise import Finding, MachineLacks

RANKS = 4

ALLOWED = frozenset(
    {
        *("Send", "Recv", "Isend", "Irecv", "Sendrecv", "Sendrecv_replace", "Ssend", "Issend"),
        *("send", "recv", "isend", "irecv", "sendrecv", "Probe", "probe"),
    }
)


@dataclass(frozen=True, slots=True)
class MpiRun:
    """Cases, by rank, and what each rank told of each case: `told[rank][case]`."""

    cases: list[list[Tensor]]
    told: list[list[dict[str, PlainData]]]


def mpi_run(answer: Answer, draw: Draw) -> MpiRun:
    """One run on four ranks. Raises MachineLacks where there is no MPI."""
    missing = mpi_missing()
    if missing:
        raise MachineLacks(missing)
    shapes = [(16, torch.float64), (6, torch.float32), (3, torch.float32), (9, torch.int64)]
    cases = [[_drawn(draw, length, dtype) for _ in range(RANKS)] for length, dtype in shapes]
    return MpiRun(cases, answer.call("unit_07.under_mpirun", cases, RANKS))


def sums(criterion: str, run: MpiRun, cases: list[int]) -> Finding:
    """Passes if every rank returned the sum in each of `cases`."""
    finding = Finding(criterion, False, "there is no result")
    for case in cases:
        total = torch.stack(run.cases[case]).sum(0)
        results = [told[case]["result"] for told in run.told]
        what = f"what was returned for {len(total)} elements"
        tolerance = TOLERANCES[total.dtype]
        finding = judge.close_on_all_ranks(criterion, results, [total] * RANKS, what, tolerance, tolerance)
        if not finding.passed:
            return finding
    return finding


def changed_in_place(criterion: str, run: MpiRun) -> Finding:
    """Passes if the array itself was changed and returned."""
    total = torch.stack(run.cases[0]).sum(0)
    arrays = [told[0]["array"] for told in run.told]
    finding = judge.close_on_all_ranks(criterion, arrays, [total] * RANKS, "x after the call")
    same = all(told[case]["same"] is True for told in run.told for case in range(len(run.cases)))
    if finding.passed and not same:
        return Finding(criterion, False, "x holds the sum, but another array was returned.")
    return finding


def messages_and_bytes(run: MpiRun) -> Iterator[Finding]:
    """Which calls were made, and what each rank sent in the first case."""
    names = [name for told in run.told for case in told for name, _, _ in case["calls"]]
    yield judge.no_calls("only messages", names, sorted(set(names) - ALLOWED), "the answer")
    nbytes = run.cases[0][0].nbytes
    allowed_messages, allowed = 2 * (RANKS - 1), 2 * (RANKS - 1) * nbytes // RANKS
    messages = max(sum(count for _, count, _ in told[0]["calls"]) for told in run.told)
    sent = max(sum(size for _, _, size in told[0]["calls"]) for told in run.told)
    passed = messages <= allowed_messages and sent <= allowed
    text = (
        f"for {nbytes} bytes on {RANKS} ranks a rank sends {messages} messages of {sent} bytes altogether; "
        f"allowed are at most {allowed_messages} messages and {allowed} bytes."
    )
    yield Finding("bytes and messages", passed, text)


def _drawn(draw: Draw, length: int, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return draw.normal(length, dtype=dtype)
    return draw.integers(-(2**58), 2**58, length)
