"""The grader of `mend_chain`."""

from collections.abc import Sequence
from itertools import takewhile

import torch

from graders.grading import compare
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Observed,
    Rng,
    exercise,
    per_rank,
)
from graders.units.unit_07 import drivers, lab
from graders.units.unit_07.drivers import MendedReply


@exercise(
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            lab.ENDS, 1, "With good values there was no hang; there must be none now.", needs=("the sums",)
        ),
        Criterion(
            "the sums",
            1,
            "Rank r returns the square roots of the values of ranks 0 to r, added up in double precision.",
        ),
        Criterion(
            "the error comes out",
            2,
            "The ValueError has to leave the function before its rank calls anything more: no except that "
            "swallows it, no finally that waits for the others.",
        ),
        Criterion(
            "chain and barrier",
            1,
            "A rank sends to the next one only, and without errors all still meet in one barrier at the end.",
        ),
    ),
    hints=("What should a rank do after an error, wait or say what happened? finally runs then too.",),
)
def mend_chain(answer: Answer, rng: Rng) -> Findings:
    """A chain of ranks, one of which may raise."""
    values = [rng.integer(1, 900) / 10 for _ in range(4)]
    with_zero = [*values[:2], 0.0, values[3]]
    runs = [lab.launched(answer, given) for given in (with_zero, values[:1])]
    yield lab.ENDS, lab.ends(runs)
    sums = (
        lab.numbers(run, given, roots_added(given), rtol=1e-12)
        for run, given in zip(runs, (with_zero, values[:1]), strict=True)
    )
    yield "the sums", compare.first_failure(sums)
    bad = [
        [-value if rank == raising else value for rank, value in enumerate(values)] for raising in range(4)
    ]
    before = begun(runs[0])
    yield "the error comes out", compare.first_failure(error_comes_out(answer, each, before) for each in bad)
    yield "chain and barrier", chain_and_barrier(runs[0])


def begun(observed: Observed[MendedReply]) -> int:
    """How many calls all ranks make together before their chain begins. There are to be none, which another
    row tells.
    """
    calls = (observed.calls(rank) for rank in range(len(observed.results)))
    each = map(set, zip(*calls, strict=False))
    return len(list(takewhile(lambda names: len(names) == 1 and not names & {"send", "recv"}, each)))


def error_comes_out(answer: Answer, values: Sequence[float], before: int) -> Finding:
    """Passes if a negative value ends the run with the ValueError that it caused, before anything else.
    before: how many calls come before the chain.
    """
    try:
        answer.launch(drivers.mended_at_once, per_rank(values), before, ranks=len(values))
    except AnswerFailed as failure:
        said = failure.report.partition("\n")[0]
        if failure.kind is FailureKind.RANK_FAILED and failure.error == "ValueError":
            return Finding(True, f"The run ended with: {said}")
        if failure.error == drivers.TooLate.__name__:
            too_late = said.replace(f" failed with {failure.error}", "")
            return Finding(False, f"With {list(values)} on the ranks: {too_late}")
        return Finding(False, f"With {list(values)} on the ranks: {failure.kind}: {said}")
    return Finding(False, f"With {list(values)} on the ranks no error came out.")


def roots_added(values: Sequence[float]) -> list[float]:
    """What each rank of the chain must return: the square roots up to its own, added up."""
    return torch.tensor(values, dtype=torch.float64).sqrt().cumsum(0).tolist()


def chain_and_barrier(observed: Observed[MendedReply]) -> Finding:
    """Passes if every rank sends to the next one only, and makes one barrier, as its last call."""
    for rank in range(len(observed.results)):
        calls = observed.calls(rank)
        if calls.count("barrier") != 1 or calls[-1] != "barrier" or set(calls) - {"send", "recv", "barrier"}:
            called = (
                f"rank {rank} of {len(observed.results)} calls {', '.join(calls) or 'nothing'} and returns"
            )
            return Finding(False, f"{called}; expected messages along the chain, and one barrier at the end.")
        peers = {event.peer for event in observed.communication(rank) if event.op == "send"}
        if peers - {rank + 1}:
            return Finding(
                False, f"rank {rank} sends to {sorted(map(str, peers))}; expected only to the next."
            )
    return Finding(True, "Every rank sends to the next one only, and ends with one barrier.")
