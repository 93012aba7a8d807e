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

STREAM = 4_000
"""So many numbers of the shared stream nobody may draw within own()."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Ranks that draw outside of own() and within in turn, other ranks more within.

    seed: None for any. apart: from the number that a rank is given to the next one's. raises: whether each
    block within ends with an exception.
    """

    ranks: int = 3
    seed: int | None = feature(None, lambda seed: "any seed" if seed is None else f"seed {seed}")
    apart: int = feature(1, lambda apart: f"ranks that are numbered 0, {apart}, {2 * apart}")
    raises: bool = feature(False, lambda raises: "blocks that an exception ends" if raises else "")


@dataclass(frozen=True, slots=True)
class Drawn:
    """seed: that of all. within: what each rank drew within own(), float64."""

    seed: int
    within: list[Tensor]
    run: Observed[DrawnReply]


def _joined(reply: DrawnReply, within: int, blocks: int) -> Tensor:
    """All that a rank drew outside of own(), or within, in so many blocks."""
    drawn = compare.side_by_side(compare.column(reply.drawn, within, 2), range(blocks))
    return torch.cat([each for each, _ in drawn])


def _apart(tried: Tried[Any]) -> Finding:
    """Passes if no number was drawn on two ranks within own(), nor within and outside. They have 53 bits."""
    drawn: Drawn = tried.seen
    streams = {f"rank {rank} within own()": own for rank, own in enumerate(drawn.within)}
    # A stream must not be a later part of the shared one either; a number takes two of the generator's words.
    shared = torch.Generator().manual_seed(drawn.seed)
    outside = torch.rand(STREAM, generator=shared, dtype=torch.float64)
    torch.rand(1, generator=shared.manual_seed(drawn.seed))
    odd = torch.rand(STREAM, generator=shared, dtype=torch.float64)
    streams["a rank outside of it"] = torch.cat([outside, odd])
    names = list(streams)
    for number, name in enumerate(names):
        for other in names[:number]:
            common = streams[other][torch.isin(streams[other], streams[name])].tolist()
            if common:
                return Finding(False, f"{other} and {name} drew the same: {common[0]:.6f} is among both.")
    return Finding(True, "No two streams have a number in common.")


def _go_on(drawn: Drawn) -> Finding:
    """Passes if several blocks drew what one of a new object with the same seed does."""
    return compare.first_failure(
        compare.close(own, reply.again, f"What rank {rank} drew in several blocks, not in one,", 0, 0)
        for rank, (own, reply) in enumerate(zip(drawn.within, drawn.run.results, strict=True))
    )


def _another_seed(tried: Tried[Any]) -> Finding:
    drawn: Drawn = tried.seen
    same = [
        bool(torch.isin(own, reply.other).any())
        for own, reply in zip(drawn.within, drawn.run.results, strict=True)
    ]
    return compare.equal(same, [False] * len(same), "Whether ranks draw the same with another seed")


def _silent(tried: Tried[Any]) -> Finding:
    drawn: Drawn = tried.seen
    calls = [call for rank in range(len(drawn.within)) for call in drawn.run.calls(rank)]
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
            vary=vary(seed=(0,), apart=(64,)),
            how=_apart,
        ),
        Criterion(
            "blocks go on",
            2,
            "Where a block ends, keep the state that it leaves.",
            how=lambda tried: _go_on(tried.seen),
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
    seed = rng.integer(1, 10**6) if case.seed is None else case.seed
    outside = [rng.integer(2, 5) for _ in range(3)]
    counts = [[rng.integer(1, 6) + rank for _ in outside] for rank in range(case.ranks)]
    given = per_rank([list(zip(outside, own, strict=True)) for own in counts])
    run = answer.launch(
        drivers.random_streams, [seed, seed + 10**6 + 7], case.apart, given, case.raises, ranks=case.ranks
    )
    generator = torch.Generator().manual_seed(seed)
    expected = torch.cat([torch.rand(count, generator=generator, dtype=torch.float64) for count in outside])
    shared = [_joined(reply, 0, len(outside)) for reply in run.results]
    what = "what is drawn outside of own()"
    found = [compare.close_on_all_ranks(shared, [expected] * case.ranks, what, rtol=0, atol=0)]
    within = [_joined(reply, 1, len(outside)) for reply in run.results]
    drawn = Drawn(seed, within, run)
    if case.raises:
        came_out = [reply.came_out for reply in run.results]
        found.append(compare.equal(came_out, [3] * case.ranks, "How many of 3 exceptions have come out"))
        found.append(_go_on(drawn))
    return compare.first_failure(found), drawn
