"""The grader of `pass_the_token`."""

from dataclasses import dataclass
from itertools import accumulate

import torch

from graders.grading.cases import both, vary
from graders.grading.expected import ANYTHING, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng
from graders.grading.traffic import Allowed, only_to, within
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments, on_ranks

PARTS = {torch.float32: 0.25, torch.float64: 0.25 + 2**-20}
"""What is added to whole numbers: a token need not be one, nor does one of 64 bits have room in 32."""
LARGE = 2**60
"""From 2**24 on single precision has not all whole numbers, and double precision from 2**53 on."""


@dataclass(frozen=True, slots=True)
class Token(Ranks):
    """dtype, shape: of the token. node: ranks a node; neither the local rank nor the node is the rank."""

    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    shape: tuple[int, ...] = feature((2,), "shape {}")
    node: int = 1

    @property
    def tolerance(self) -> float:
        return 0.0

    @property
    def devices_per_node(self) -> int:
        return self.node


def a_token_and_room(rng: Rng, case: Token) -> list[Arguments]:
    """Rank 0 is called with the token, the others with something of its kind that is not it."""
    first, part = (100, PARTS[case.dtype]) if case.dtype.is_floating_point else (LARGE, 0)
    starts = [first * (rank + 1) for rank in range(case.ranks)]
    return [[rng.integers(start, start + 50, *case.shape).to(case.dtype) + part] for start in starts]


def one_message_a_rank(case: Token) -> Allowed:
    """To the next rank; a single one sends nothing."""
    nbytes, count = torch.Size(case.shape).numel() * case.dtype.itemsize, case.ranks * (case.ranks > 1)
    return Allowed(min(count, 1), nbytes, case.ranks, case.ranks * nbytes, count, count * nbytes)


def to_the_next(tried: Tried[Token]) -> Finding | None:
    """Passes if each rank sends the token once, to the rank after it."""
    ranks = tried.case.features.ranks
    found = only_to(tried.seen.traffic, lambda place: [(place + 1) % ranks], "the next rank")
    return within(tried.seen.traffic, tried.seen.allowed) if found.passed else found


@on_ranks(
    base=Token(),
    minutes=12,
    difficulty=2,
    rubric=(
        Criterion(
            "every rank returns what it held",
            2,
            "Each rank from 1 on adds its own number to what has come, before it sends it on. Only rank 0 "
            "sends first; after rank p - 1 comes rank 0. Every rank returns the token as it last held it.",
        ),
        Criterion(
            "any world and token",
            1,
            "Receive into a tensor of the token's shape and dtype; any will do, such as the one that your "
            "function got. How many ranks there are says dist.get_world_size().",
            vary=vary(ranks=(2, 3, 5), dtype=(torch.float64, torch.int64), shape=((2, 3),))
            + both(ranks=6, node=2),
        ),
        Criterion(
            "a world of one",
            1,
            "Rank 0 has no neighbour then, and nobody can send to itself.",
            vary=vary(ranks=(1,)),
        ),
        Criterion(
            "one message a rank, to the next",
            2,
            "Each rank receives once, from the rank before it, and sends once, to the rank after it: the "
            "token, as it is. It is passed by hand; no collective is needed.",
            how=to_the_next,
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
    arguments=a_token_and_room,
    allowed=one_message_a_rank,
)
def pass_the_token(case: Token, given: list[Arguments]) -> list[Expected]:
    """What each rank last held; rank 0 is the first to hold it, and the last."""
    sums = [*accumulate(range(case.ranks))]
    sums[0] = sums[-1]
    [token] = given[0]
    return [Expected(token + added, {"token": ANYTHING}) for added in sums]
