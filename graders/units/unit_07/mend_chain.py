"""The grader of `mend_chain`."""

import math
from itertools import accumulate

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Rng,
    compare,
    per_rank,
)
from graders.units.drivers import call
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments, on_ranks


def a_value_on_each(rng: Rng, case: Ranks) -> list[Arguments]:
    """One value a rank, none below 0, and the last one 0."""
    return [[rng.integer(1, 900) / 10 * (rank + 1 < case.ranks)] for rank in range(case.ranks)]


def error_comes_out(answer: Answer, rng: Rng) -> Finding:
    """Passes if a launch in which one rank's value is negative ends with its ValueError."""
    return compare.first_failure(_ends_with_its_error(answer, rank) for rank in (0, 2, 3))


def _ends_with_its_error(answer: Answer, rank: int) -> Finding:
    values = [4.0, 4.0, 4.0, 4.0]
    values[rank] = -1.0
    where = f"With {values} on the ranks"
    try:
        answer.launch(call, per_rank(values), ranks=4)
    except AnswerFailed as failure:
        said = failure.report.partition("\n")[0]
        right = failure.kind is FailureKind.RANK_FAILED and failure.error == "ValueError"
        return Finding(right, f"{where}: {failure.kind}: {said}")
    return Finding(False, f"{where} no error came out.")


def chain_and_barrier(tried: Tried[Ranks]) -> Finding:
    """Passes if every rank sends to the next one only, and makes one barrier, as its last call."""
    for rank, events in enumerate(tried.seen.by_rank):
        calls = [event.op for event in events]
        if calls.count("barrier") != 1 or calls[-1] != "barrier" or set(calls) - {"send", "recv", "barrier"}:
            called = f"rank {rank} calls {', '.join(calls) or 'nothing'} and returns"
            return Finding(False, f"{called}; expected messages along the chain, and one barrier at the end.")
        peers = {event.peer for event in events if event.op == "send"}
        if peers - {rank + 1}:
            return Finding(False, f"rank {rank} sends to {sorted(map(str, peers))}; expected the next only.")
    return Finding(True, "every rank sends to the next one only, and ends with one barrier.")


@on_ranks(
    base=Ranks(),
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "the sums",
            2,
            "Rank r returns the square roots of the values of ranks 0 to r, added up in double precision.",
            vary=vary(ranks=(1, 3)),
        ),
        Criterion(
            "the error comes out",
            2,
            "The ValueError has to leave the function: no except that swallows it, no finally that waits for "
            "the others.",
            ask=error_comes_out,
        ),
        Criterion(
            "chain and barrier",
            1,
            "A rank sends to the next one only, and without errors all still meet in one barrier at the end.",
            how=chain_and_barrier,
        ),
    ),
    hints=("What should a rank do after an error, wait or say what happened? finally runs then too.",),
    arguments=a_value_on_each,
    calls=None,
    written=lambda case: "float(dist.get_rank())",
)
def mend_chain(case: Ranks, given: list[Arguments]) -> list[Expected]:
    """A chain of ranks, one of which may raise."""
    sums = accumulate(math.sqrt(value) for (value,) in given)
    return [Expected(total, {"value": value}, None) for total, (value,) in zip(sums, given, strict=True)]
