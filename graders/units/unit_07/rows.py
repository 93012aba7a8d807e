"""Rows of a rubric that unit 07's collectives share, with what they vary."""

import torch

from graders.grading.cases import Values, both, vary
from graders.grading.kit import Criterion
from graders.units.ranks.rows import frugal, kept, quick
from graders.units.unit_07.cases import SLOW_LINKS

ODD = (1, 2, 3, 5, 6, 8)
IN_ROUNDS = (1, 2, 3, 5, 6, 8, 19)
"""Numbers of ranks for what takes log2 p rounds: 19 take more than the text's eight, and three fold."""
GIVEN_SHAPES = vary(shape=((), (5, 3)))
DTYPES = (torch.float64, torch.int64, torch.int32, torch.bfloat16, torch.float16)


def any_ranks(hint: str, points: float = 1, ranks: tuple[int, ...] = ODD) -> Criterion:
    """Other numbers of ranks, one among them."""
    return Criterion("any number of ranks", points, hint, vary=vary(ranks=ranks))


def any_length(hint: str) -> Criterion:
    """Lengths that do not divide, fewer elements than ranks, none, a matrix, and a number."""
    return Criterion("any length", 1, hint, vary=vary(length=(0, 1, 3, 11, 13)) + GIVEN_SHAPES)


ANY_TENSOR = Criterion(
    "any dtype and layout",
    1,
    "Make tensors of your own like x, with its dtype and on its device: torch.empty_like(x), x.new_empty(n). "
    "Messages need contiguous tensors: work on x.contiguous(), a copy if x is not, then x.copy_(...). "
    "clone() keeps the layout; x.contiguous().clone() does not.",
    vary=vary(dtype=DTYPES, layout=("meta", "strided"))
    + both(layout="strided", dtype=torch.int64)
    + both(layout="transposed", shape=(4, 3))
    + both(layout="meta", shape=(4, 3)),
)


def in_place(hint: str) -> Criterion:
    """What arguments hold afterwards, and which object is returned."""
    return Criterion("in place", 1, hint, how=kept)


def on_a_subgroup(hint: str = "") -> Criterion:
    """Groups of some ranks, whose places are no global ranks."""
    of_groups = (
        "Rank and size come from dist.get_rank(group) and dist.get_world_size(group), in each call anew; "
        "peers of a message are group_dst= and group_src=, with group=group."
    )
    return Criterion("on a subgroup", 1, f"{of_groups} {hint}".strip(), vary=vary(group=(1, 2)))


ROOTS_ARE_GLOBAL = "Roots are global ranks: see the rule for any group."


def any_root(
    hint: str, *overlapping: tuple[tuple[int, int], ...], more: tuple[Values, ...] = ()
) -> Criterion:
    """Roots at other places; calls that begin, with these lengths and roots, before one of 40 elements is
    over; and `more`.
    """
    calls = tuple(
        change for then in overlapping for change in both(machine=SLOW_LINKS, ranks=8, length=40, then=then)
    )
    return Criterion("any root", 1, hint, vary=vary(root=(3, 1)) + both(ranks=2, root=1) + more + calls)


A_SLOW_RANK = Criterion(
    "a slow rank",
    1,
    "Name the source of each recv: without one it takes whatever comes first, even from another rank than "
    "the one that this round is about.",
    vary=vary(machine=(1,)),
)


def bytes_and_messages(hint: str, points: float = 1, needs: tuple[str, ...] = ()) -> Criterion:
    """No more than are needed, of a rank and of all together."""
    return Criterion("bytes and messages", points, hint, needs=needs or None, how=frugal)


def rounds(hint: str, points: float = 1, needs: tuple[str, ...] = ("bytes and messages",)) -> Criterion:
    """No longer than the rounds take."""
    return Criterion("rounds", points, hint, needs=needs, how=quick)
