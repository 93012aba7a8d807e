"""Unit 06, dropout: one stream of random numbers for all ranks, and one for each."""

import torch
from torch import Tensor

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_06 import drivers
from graders.units.unit_06.replies import DrawnReply

Blocks = list[tuple[str, list[int]]]
"""What a rank draws: where, and how many numbers each time. See the driver."""

STREAM = 20_000
"""So many numbers of the shared stream nobody may draw within own()."""


@exercise(
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
        ),
        Criterion("blocks go on", 2, "Where a block ends, keep the state that it leaves."),
        Criterion(
            "after an exception",
            1,
            "What stands behind yield is skipped by an exception, unless it stands in a finally.",
            needs=("the same on all ranks", "blocks go on"),
        ),
        Criterion(
            "drawn once more",
            1,
            "Seed and rank decide, and nothing else.",
            needs=("other on every rank", "blocks go on"),
        ),
        Criterion("nobody communicates", 1, "Each rank knows the seed and its number."),
    ),
    hints=(
        "What would torch have to forget when a block ends, and what must it not forget?",
        "torch.get_rng_state() and torch.set_rng_state(state): two states, of which one is always put away.",
        "torch.Generator().manual_seed(number).get_state() makes a state without touching torch's own.",
    ),
)
def RandomStreams(answer: Answer, rng: Rng) -> Findings:  # noqa: N802
    """Drawn numbers of draws, another one on every rank within own()."""
    ranks, seed = rng.integer(3, 4), rng.integer(0, 10**6)
    counts = [[rng.integer(1, 6) + rank for _ in range(3)] for rank in range(ranks)]
    outside = [rng.integer(2, 5) for _ in range(3)]
    mixed = [_mixed(outside, own, "own") for own in counts]
    run = _drawn(answer, seed, mixed)
    yield "the same on all ranks", _shared(run, mixed, seed)
    # With seed 0, which is the usual one, products of seeds and ranks are all the same.
    many: list[Blocks] = [[("own", [STREAM // ranks])]] * ranks
    usual = _drawn(answer, 0, many, apart=64)
    yield "other on every rank", compare.first_failure((_apart(run, mixed, seed), _apart(usual, many, 0)))
    together = _drawn(answer, seed, [[("own", own)] for own in counts])
    yield (
        "blocks go on",
        compare.first_failure(
            compare.equal(
                _flat(apart, "own", blocks), torch.cat(whole.drawn[0]), "What several blocks drew in all"
            )
            for apart, blocks, whole in zip(run.results, mixed, together.results, strict=True)
        ),
    )
    left = [_mixed(outside, own, "raises") for own in counts]
    yield "after an exception", _left(_drawn(answer, seed, left), left, run)
    others = [_drawn(answer, number, mixed) for number in (seed, seed + 10**6 + 7)]
    yield "drawn once more", _again(run, others[0], others[1], mixed)
    calls = [
        call for each in (run, usual, together, *others) for rank in range(ranks) for call in each.calls(rank)
    ]
    yield "nobody communicates", compare.equal(calls, [], "Calls of all ranks")


def _mixed(outside: list[int], own: list[int], kind: str) -> Blocks:
    """Outside and within in turn."""
    pairs = zip(outside, own, strict=True)
    return [block for first, second in pairs for block in (("shared", [first]), (kind, [second]))]


def _drawn(answer: Answer, seed: int, blocks: list[Blocks], apart: int = 1) -> Observed[DrawnReply]:
    return answer.launch(drivers.random_states, seed, per_rank(blocks), apart, ranks=len(blocks))


def _flat(reply: DrawnReply, kind: str, blocks: Blocks) -> Tensor:
    """All that a rank drew in blocks of a kind, one after the other."""
    pairs = compare.side_by_side(reply.drawn, blocks)
    drawn = [draw for draws, (where, _) in pairs if where == kind for draw in draws]
    return torch.cat(drawn) if drawn else torch.empty(0, dtype=torch.float64)


def _shared(run: Observed[DrawnReply], blocks: list[Blocks], seed: int) -> Finding:
    """Passes if outside of own() each rank drew what torch draws after manual_seed."""
    generator = torch.Generator().manual_seed(seed)
    counts = [count for where, draws in blocks[0] if where == "shared" for count in draws]
    expected = torch.cat([torch.rand(count, generator=generator, dtype=torch.float64) for count in counts])
    seen = [_flat(reply, "shared", own) for reply, own in zip(run.results, blocks, strict=True)]
    what = "What is drawn outside of own()"
    return compare.close_on_all_ranks(seen, [expected] * len(blocks), what, rtol=0, atol=0)


def _apart(run: Observed[DrawnReply], blocks: list[Blocks], seed: int) -> Finding:
    """Passes if no number was drawn on two ranks within own(), nor within and outside. They have 53 bits."""
    streams = {
        f"rank {rank} within own()": set(_flat(reply, "own", own).tolist())
        for rank, (reply, own) in enumerate(zip(run.results, blocks, strict=True))
    }
    # A stream must not be a later part of the shared one either; a number takes two of the generator's words.
    shared = torch.Generator().manual_seed(seed)
    outside = torch.rand(STREAM, generator=shared, dtype=torch.float64)
    torch.rand(1, generator=shared.manual_seed(seed))
    odd = torch.rand(STREAM, generator=shared, dtype=torch.float64)
    streams["a rank outside of it"] = {*outside.tolist(), *odd.tolist()}
    names = list(streams)
    for number, name in enumerate(names):
        for other in names[:number]:
            if common := streams[name] & streams[other]:
                return Finding(False, f"{other} and {name} drew the same: {min(common):.6f} is among both.")
    return Finding(True, "No two streams have a number in common.")


def _left(run: Observed[DrawnReply], blocks: list[Blocks], usual: Observed[DrawnReply]) -> Finding:
    """Passes if blocks that an exception ended drew, and left, what others do, and the exception came out."""
    raised = [number for number, (kind, _) in enumerate(blocks[0]) if kind == "raises"]
    return compare.first_failure(
        finding
        for reply, other in zip(run.results, usual.results, strict=True)
        for finding in (
            compare.equal(reply.escaped, raised, "Blocks that their exception has left"),
            compare.equal(reply.drawn, other.drawn, "What is drawn where each block ends with an exception"),
        )
    )


def _again(
    run: Observed[DrawnReply], same: Observed[DrawnReply], other: Observed[DrawnReply], blocks: list[Blocks]
) -> Finding:
    """Passes if the same seed draws the same, and another seed nothing of it."""
    for rank, own in enumerate(blocks):
        first, again, apart = (_flat(each.results[rank], "own", own) for each in (run, same, other))
        if not torch.equal(first, again):
            return Finding(
                False, f"Rank {rank} draws {compare.shown(again)} with the same seed, not the same."
            )
        if set(first.tolist()) & set(apart.tolist()):
            return Finding(False, f"Rank {rank} draws the same with another seed: {compare.shown(apart)}.")
    return Finding(True, "The same seed draws the same once more, and another seed does not.")
