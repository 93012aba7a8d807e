"""Runs of an answer under mpirun, and what is found of what its ranks told."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_lib.launch.mpi import mpi_missing
from graders.grading.judging import in_words
from graders.grading.kit import Answer, AnswerFailed, FailureKind, Finding, MachineLacks, Rng, compare
from graders.units.unit_07 import drivers
from graders.units.unit_07.cases import Setting, numbers
from graders.units.unit_07.drivers import MpiReply
from graders.units.unit_07.mpi_calls import COLLECTIVES

RANKS = 3
WORLDS = [
    *(Setting(RANKS, length=length, dtype=torch.float64) for length in (12, 5, 2)),
    Setting(RANKS, length=6, dtype=torch.int64),
    Setting(2, length=8, dtype=torch.float64),
    # Chunks of 80 KB: a blocking send of so much returns only when somebody receives.
    Setting(RANKS, length=30_000, dtype=torch.float64),
    Setting(1, length=4, dtype=torch.float64),
    Setting(2, length=1, dtype=torch.float64),
]
NARROW = [
    Setting(RANKS, length=8),
    Setting(RANKS, length=4, dtype=torch.int32),
    Setting(2, length=4, dtype=torch.int16),
]
"""Elements of 4 and 2 bytes, in chunks of which some are no whole number of 8."""


@dataclass(frozen=True, slots=True)
class MpiRun:
    """Worlds, a tensor for each rank that takes part, and what these told of each: `told[case][rank]`."""

    worlds: list[Setting]
    cases: list[list[Tensor]]
    told: list[list[MpiReply]]


def mpi_runs(answer: Answer, rng: Rng) -> tuple[MpiRun, Finding]:
    """A run with all worlds, or one of float64 alone and what was raised with other dtypes, which costs no
    other row. Raises MachineLacks where there is no MPI.
    """
    missing = mpi_missing()
    if missing:
        raise MachineLacks(missing)
    try:
        return mpi_run(answer, rng, WORLDS + NARROW), Finding(True, "Nothing was raised.")
    except AnswerFailed as failure:
        if failure.kind is FailureKind.NOT_ATTEMPTED:
            raise
        others = [world for world in WORLDS + NARROW if world.dtype != torch.float64]
        said = f"With {' or '.join(map(in_words, others))}: {failure.report}"
        alike = [replace(world, dtype=torch.float64) for world in WORLDS]
        return mpi_run(answer, rng, alike), Finding(False, said)


def mpi_run(answer: Answer, rng: Rng, worlds: list[Setting]) -> MpiRun:
    """One run on three ranks, of which some cases have fewer."""
    cases = [numbers(rng, world) for world in worlds]
    everyone = answer.call(drivers.under_mpirun, cases, RANKS, timeout=drivers.MPI_SECONDS + 5)
    told = [of_rank for of_rank, _ in compare.side_by_side(everyone, range(RANKS))]
    by_rank = [[case for case, _ in compare.side_by_side(of_rank, cases)] for of_rank in told]
    by_case = [[by_rank[rank][case] for rank in range(len(given))] for case, given in enumerate(cases)]
    return MpiRun(worlds, cases, [[reply for reply in replies if reply is not None] for replies in by_case])


def built(run: MpiRun, values: Finding) -> Finding:
    """The finding about the values; right ones that a collective of MPI's has made count for nothing."""
    called = sorted({name for case in run.told for told in case for name, *_ in told.calls} & COLLECTIVES)
    if not values.passed or not called:
        return values
    return Finding(
        False, f"the values are right, but the answer calls {', '.join(called)}; expected messages."
    )


def sums(run: MpiRun, cases: list[int]) -> Finding:
    """Passes if every rank returned the sum in each of `cases`."""

    def one(case: int) -> Finding:
        total = torch.stack(run.cases[case]).sum(0, dtype=run.worlds[case].dtype)
        results = [told.result for told in run.told[case]]
        ranks = len(run.cases[case])
        what = f"what was returned for {len(total)} elements on {ranks} ranks"
        tolerance = run.worlds[case].tolerance
        return compare.close_on_all_ranks(results, [total] * ranks, what, tolerance, tolerance)

    return compare.first_failure(map(one, cases))


def changed_in_place(run: MpiRun) -> Finding:
    """Passes if the array itself was changed and returned."""
    total = torch.stack(run.cases[0]).sum(0)
    arrays = [told.array for told in run.told[0]]
    finding = compare.close_on_all_ranks(arrays, [total] * RANKS, "x after the call")
    same = all(told.same is True for case in run.told for told in case)
    if finding.passed and not same:
        return Finding(False, "x holds the sum, but another array was returned.")
    return finding
