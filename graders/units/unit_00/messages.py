"""Unit 00, messages: a token goes round."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading import compare
from graders.grading.communication import calls_of, in_words, only_calls
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    Finding,
    Findings,
    Observed,
    PlainData,
    Rng,
    exercise,
    per_rank,
)
from graders.units.unit_00 import drivers
from graders.units.unit_00.drivers import PassedReply


@exercise(
    minutes=12,
    difficulty=2,
    rubric=(
        Criterion(
            "the token comes back",
            1,
            "Each rank from 1 on adds its own number to what has come, before it sends it on. Only rank 0 "
            "sends first. After rank p - 1 comes rank 0.",
        ),
        Criterion(
            "every rank returns what it held",
            1,
            "Every rank returns the token, not rank 0 alone. Rank r last held it when it sent it on: with "
            "its own rank added, and not those after it.",
        ),
        Criterion(
            "only send and recv",
            1,
            "A token is passed by hand; no collective is needed.",
            needs=("the token comes back", "every rank returns what it held"),
        ),
        Criterion(
            "one message a rank, to the next",
            1,
            "Each rank receives once, from the rank before it, and sends once, to the rank after it: the "
            "token, as it is.",
            needs=("the token comes back", "only send and recv"),
        ),
        Criterion(
            "the token has the sum in it",
            1,
            "Add this rank's own number to what has come, before it is sent on, and nothing else: what the "
            "ranks before it have added is in the token.",
            needs=("one message a rank, to the next",),
        ),
        Criterion(
            "a world of one",
            1,
            "Rank 0 has no neighbour then, and nobody can send to itself.",
            needs=("the token comes back", "only send and recv"),
        ),
    ),
    hints=(
        "Why must not all ranks receive first? Then nobody sends. What rank 0 does differs from what all "
        "others do.",
        "In which order does each act? Rank 0: send to the next, then receive from the last. All others: "
        "receive, add, send.",
        "Into what does recv write? Into the tensor that it is given; any of the right shape and dtype will "
        "do, such as the one that your function got.",
        "With whom can a single rank talk? With nobody: it returns at once.",
    ),
)
def pass_the_token(answer: Answer, rng: Rng) -> Findings:
    """Values first, in worlds of several sizes and tensors of several dtypes, then who sent what to whom."""
    worlds = [_draw_tokens(rng, *world) for world in _WORLDS]
    runs = [_passed(answer, tokens) for tokens in worlds]
    both = list(zip(worlds, runs, strict=True))

    yield "the token comes back", compare.first_failure(_returned(tokens, run, (0,)) for tokens, run in both)
    yield (
        "every rank returns what it held",
        compare.first_failure(_returned(tokens, run, range(len(tokens))) for tokens, run in both),
    )
    yield "only send and recv", _only_messages(runs)
    yield "one message a rank, to the next", compare.first_failure(_round_the_ring(*each) for each in both)
    yield "the token has the sum in it", _exchanged(answer, rng)
    yield "a world of one", _alone(answer, rng)


_WORLDS = ((2, torch.float32, (2,)), (5, torch.float64, ()), (3, torch.int64, (2, 3)))
"""Ranks, and the token's dtype and shape: none of them may be taken for granted."""
_ONE_NODE = 5
"""So many ranks are on one node, and none of fewer: neither the local rank nor the node is the rank."""
_PARTS = {torch.float32: 0.25, torch.float64: 0.25 + 2**-20}
"""What is added to whole numbers: a token need not be one, nor does one of 64 bits have room in 32."""
_LARGE = 2**60
"""From 2**24 on single precision has not all whole numbers, and double precision from 2**53 on."""


def _draw_tokens(rng: Rng, ranks: int, dtype: torch.dtype, shape: tuple[int, ...]) -> list[Tensor]:
    """What each rank is called with: rank 0 the token, the others something of its kind that is not it."""
    first, part = (100, _PARTS[dtype]) if dtype.is_floating_point else (_LARGE, 0)
    return [
        rng.integers(first * (rank + 1), first * (rank + 1) + 50, *shape).to(dtype) + part
        for rank in range(ranks)
    ]


def _passed(answer: Answer, tokens: list[Tensor]) -> Observed[PassedReply]:
    """The token goes round, on one node or on as many as there are ranks."""
    world = len(tokens)
    cluster = Cluster(devices_per_node=world) if world == _ONE_NODE else Cluster(nodes=world)
    return answer.launch(drivers.passed, per_rank(tokens), ranks=world, cluster=cluster)


def _returned(tokens: list[Tensor], observed: Observed[PassedReply], ranks: Sequence[int]) -> Finding:
    """Passes if each of the ranks returned the token as it was when that rank last held it."""
    world = len(tokens)
    sums = [*accumulate(range(world))]
    sums[0] = sums[-1]  # rank 0 is the first to hold it, and the last
    begun = tokens[0].tolist()
    for rank in ranks:
        seen, added = observed.results[rank].token, sums[rank]
        what = f"what rank {rank} of {world} returned (the token began as {begun})"
        finding = _exactly(seen, tokens[0] + added, what)
        if not finding.passed:
            return Finding(False, f"{finding.seen}{_what_is_missing(seen, tokens[0], added)}", finding.kind)
    return Finding(True, f"{world} ranks returned what they should; the token began as {begun}.")


def _what_is_missing(seen: PlainData, begun: Tensor, added: int) -> str:
    """A sentence, if the token was returned with another sum of ranks in it than `added`."""
    if not isinstance(seen, Tensor) or seen.shape != begun.shape or seen.dtype != begun.dtype:
        return ""
    if torch.equal(seen, begun):
        return " No rank's number has been added to it."
    by = (seen - begun).flatten()[0].item()
    if f"{by:g}" == str(added) or not torch.equal(seen - begun, torch.full_like(begun, by)):
        return ""
    return f" {by:g} has been added to it; expected {added}."


def _only_messages(runs: Sequence[Observed[PassedReply]]) -> Finding:
    """Passes if no rank makes another call, nor a group to make it in."""
    for run in runs:
        for rank, reply in enumerate(run.results):
            if reply.groups > 0:
                text = f"rank {rank} of {len(run.results)} calls new_group, which is not allowed here"
                return Finding(False, f"{text}: all ranks are in the default group.")
    return only_calls(calls_of(runs), ("send", "recv"), "pass_the_token")


def _round_the_ring(tokens: list[Tensor], observed: Observed[PassedReply]) -> Finding:
    """Passes if each rank receives one token, from the rank before it, and sends one, to the one after it.

    In which order is no matter: what has the right value cannot have been sent before it arrived.
    """
    world, token = len(tokens), tokens[0]
    for rank in range(world):
        next_rank, previous = (rank + 1) % world, (rank - 1) % world
        expected = [("recv", previous), ("send", next_rank)]
        made = observed.communication(rank)
        seen = [(event.op, event.peer) for event in made]
        if sorted(seen, key=str) != expected:
            text = f"rank {rank} of {world} made the calls {_calls(seen)}; expected {_calls(expected)}"
            return Finding(False, f"{text}.")
        tags = sorted({event.tag for event in made} - {0})
        if tags:
            return Finding(False, f"rank {rank} of {world} uses the tag {tags[0]}; expected none.")
        others = [event.nbytes for event in made if event.nbytes != token.nbytes]
        if others:
            kind = f"{str(token.dtype).removeprefix('torch.')}{[*token.shape]}"
            text = f"rank {rank} of {world} passes on a message of {others[0]} bytes"
            return Finding(False, f"{text}; the token is {kind}, {token.nbytes} bytes.")
    return Finding(True, f"{world} ranks, {observed.traffic.messages} messages, each to the next rank.")


def _exchanged(answer: Answer, rng: Rng) -> Finding:
    """Passes if of five ranks each adds to what has come to it, whatever that is.

    In the middle a rank of the grader's takes the token and sends another one on. Who computes what the ranks
    before must have added, and does not take it from the token, is wrong from there on.
    """
    world, middle = 5, 2
    tokens = _draw_tokens(rng, world, torch.float32, (2,))
    other = rng.integers(1000, 2000, 2).float()
    told = (
        f"what comes to rank {middle} of {world} ranks, where rank 0's token is {tokens[0].tolist()},",
        f"the token that rank 0 returns where rank {middle} has changed it on its way to {other.tolist()},",
    )
    wanted = tokens[0] + sum(range(middle)), other + sum(range(middle + 1, world))
    stands = per_rank([rank == middle for rank in range(world)])
    try:
        observed = answer.launch(drivers.exchanged, per_rank(tokens), stands, other, ranks=world)
    except AnswerFailed as failure:
        if failure.error != "AssertionError":
            raise
        # Who is surprised at what comes back has looked at it.
        observed = answer.launch(drivers.exchanged, per_rank(tokens), stands, None, ranks=world)
        return _exactly(observed.results[middle].kept, wanted[0], told[0])
    kept = observed.results[middle].kept, observed.results[0].kept
    return compare.first_failure(map(_exactly, kept, wanted, told))


def _exactly(seen: PlainData, expected: Tensor, what: str) -> Finding:
    """Passes if `seen` is the tensor expected, of any shape, bit by bit."""
    return compare.close(seen, expected, what, rtol=0, atol=0)


def _alone(answer: Answer, rng: Rng) -> Finding:
    """Passes if the only rank of a world returns the token and sends nothing."""
    tokens = _draw_tokens(rng, 1, torch.float32, (3,))
    observed = _passed(answer, tokens)
    finding = _returned(tokens, observed, (0,))
    if not finding.passed:
        return finding
    calls = observed.calls(0)
    return Finding(not calls, f"The only rank returned the token and called {in_words(calls)}.")


def _calls(calls: Sequence[tuple[str, int | None]]) -> str:
    """`recv from 0, send to 2`."""
    words = {"send": "to", "recv": "from"}
    return ", ".join(f"{op} {words.get(op, 'with')} {peer}" for op, peer in calls) or "(none)"
