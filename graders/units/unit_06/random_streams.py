"""The grader of `RandomStreams`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.cases import vary
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare, per_rank
from graders.units.one_by_one import one_by_one
from graders.units.unit_06 import drivers
from graders.units.unit_06.drivers import DrawnReply


@dataclass(frozen=True, slots=True)
class Blocks:
    """Ranks that draw outside of own() and within in turn, other ranks more within. raises: whether each
    block within ends with an exception.
    """

    ranks: int = feature(3, "{} ranks")
    raises: bool = feature(False, lambda raises: "blocks that an exception ends" if raises else "")


Drawn = tuple[Tensor, Observed[DrawnReply]]
"""What all have to draw outside of own(), with much of what comes after it; and what each rank drew."""


def _apart(tried: Tried[Any]) -> Finding:
    """Passes if no number was drawn on two ranks within own(), nor within and outside. They have 53 bits."""
    outside, run = tried.seen
    streams = [("a rank outside of it", outside)]
    for rank, reply in enumerate(run.results):
        for name, other in streams:
            common = other[torch.isin(other, reply.within)].tolist()
            if common:
                return Finding(False, f"rank {rank} within own() and {name} both drew {common[0]:.6f}.")
        streams.append((f"rank {rank} within own()", reply.within))
    return Finding(True, "No two streams have a number in common.")


def _go_on(run: Observed[DrawnReply]) -> Finding:
    """Passes if several blocks drew what one of a new object with the same seed does."""
    return compare.first_failure(
        compare.close(
            reply.within, reply.again, f"What rank {rank} drew in several blocks, not in one,", 0, 0
        )
        for rank, reply in enumerate(run.results)
    )


def _another_seed(tried: Tried[Any]) -> Finding:
    same = [bool(torch.isin(reply.within, reply.other).any()) for reply in tried.seen[1].results]
    return compare.equal(same, [False] * len(same), "Whether ranks draw the same with another seed")


def _silent(tried: Tried[Any]) -> Finding:
    run = tried.seen[1]
    calls = [call for rank in range(len(run.results)) for call in run.calls(rank)]
    return compare.equal(calls, [], "Calls of all ranks")


@one_by_one(
    base=Blocks(),
    name="RandomStreams",
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the same on all ranks",
            3,
            "Outside of own() a rank draws as if nobody had drawn within, however much that was.",
        ),
        Criterion(
            "other on every rank",
            2,
            "No two ranks may draw the same within own(), and none what all draw outside: not rank 0 either.",
            how=_apart,
        ),
        Criterion(
            "blocks go on",
            2,
            "Where a block ends, keep the state that it leaves.",
            how=lambda tried: _go_on(tried.seen[1]),
        ),
        Criterion(
            "after an exception",
            1,
            "What stands behind yield is skipped by an exception, unless it stands in a finally.",
            needs=("the same on all ranks", "blocks go on"),
            vary=vary(raises=(True,)),
        ),
        Criterion(
            "other with another seed",
            1,
            "Seed and rank decide, and nothing else.",
            needs=("other on every rank", "blocks go on"),
            how=_another_seed,
        ),
        Criterion("nobody communicates", 1, "Each rank knows the seed and its number.", how=_silent),
    ),
    hints=(
        "What would torch have to forget when a block ends, and what must it not forget?",
        "torch.get_rng_state() and torch.set_rng_state(state): two states, of which one is always put away.",
        "torch.Generator().manual_seed(number).get_state() makes a state without touching torch's own.",
    ),
)
def random_streams(answer: Answer, case: Blocks, rng: Rng) -> tuple[Finding, Drawn]:
    """What torch draws after manual_seed, outside of own(); of an exception that ends a block more."""
    seed = rng.integer(1, 10**6)
    outside = [rng.integer(2, 5) for _ in range(3)]
    counts = [[(count, rng.integer(1, 6) + rank) for count in outside] for rank in range(case.ranks)]
    seeds = [seed, seed + 10**6 + 7]
    run = answer.launch(drivers.random_streams, seeds, per_rank(counts), case.raises, ranks=case.ranks)
    stream = torch.rand(4000, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    shared, expected = [reply.outside for reply in run.results], [stream[: sum(outside)]] * case.ranks
    found = [compare.close_on_all_ranks(shared, expected, "what is drawn outside of own()", rtol=0, atol=0)]
    if case.raises:
        came_out = [reply.came_out for reply in run.results]
        found.append(compare.equal(came_out, [3] * case.ranks, "How many of 3 exceptions have come out"))
        found.append(_go_on(run))
    return compare.first_failure(found), (stream, run)
