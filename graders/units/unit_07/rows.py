"""Rows of a rubric that unit 07's collectives share, with what they vary."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from graders.grading.cases import both, vary
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.units.ranks.rows import frugal, kept, quick
from graders.units.ranks.stage import on_ranks
from graders.units.unit_07.cases import Setting, possible

collective = partial(on_ranks, base=Setting(), possible=possible)
"""Registers one, see `on_ranks`."""

RANKS = vary(ranks=(1, 2, 3, 6, 8, 9))
A_SLOW_RANK = vary(slow=(True,))
"""In which a recv without a source takes what comes first."""


def any_ranks(hint: str, points: float = 1) -> Criterion:
    """Other numbers of ranks, one among them."""
    source = "Name the source of each recv: without one it takes whatever comes first."
    return Criterion("any number of ranks", points, f"{hint} {source}", vary=RANKS + A_SLOW_RANK)


def any_root(hint: str) -> Criterion:
    """Roots at other places, also among other numbers of ranks."""
    changes = vary(root=(3, 1)) + both(ranks=2, root=1) + RANKS
    return Criterion("any root, any number of ranks", 2, hint, vary=changes)


def any_tensor(hint: str) -> Criterion:
    """Lengths that do not divide, fewer elements than ranks, a matrix; dtypes, gaps, and another device."""
    of_all = (
        "Make tensors of your own like x, with its dtype and on its device: torch.empty_like(x), "
        "x.new_empty(n). Messages need contiguous tensors: work on x.contiguous(), a copy if x is not, then "
        "x.copy_(...)."
    )
    changes = both(length=3, dtype=torch.int64) + vary(
        length=(13,), shape=((5, 3),), dtype=(torch.bfloat16,), layout=("meta", "strided")
    )
    return Criterion("any tensor", 2, f"{hint} {of_all}", vary=changes)


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


def bytes_and_messages(
    hint: str, points: float = 1, how: Callable[[Tried[Any]], Finding | None] = frugal
) -> Criterion:
    """No more than are needed, of a rank and of all together."""
    return Criterion("bytes and messages", points, hint, how=how)


def rounds(hint: str, points: float = 1, how: Callable[[Tried[Any]], Finding | None] = quick) -> Criterion:
    """No longer than the rounds take."""
    return Criterion("rounds", points, hint, needs=("bytes and messages",), how=how)
