"""Where chunks are cut: a ring adds up each of them in another order, and some sums tell in which."""

from collections.abc import Sequence

import torch
from torch import Tensor

from graders.grading.kit import Answer, Finding, Rng, compare
from graders.units.unit_07.collective import Collective
from graders.units.unit_07.collectives import play
from graders.units.unit_07.worlds import World


def cut_as_asked(
    answer: Answer, rng: Rng, collective: Collective, ranks: int, length: int, node: int
) -> Finding:
    """Passes if an all-reduce of so many elements cuts its chunks as torch.tensor_split does: a part a rank
    or, with `node` ranks a node, a part a rank of the node, and of each a part a node.
    """
    world = World(ranks, length, node=node, orders=True)
    [told] = play(answer, rng, collective, [world]).told
    parts = list(torch.arange(length).tensor_split(node or ranks))
    if node:
        parts = [piece for part in parts for piece in part.tensor_split(ranks // node)]
    return compare.first_failure(begins_where(parts, called.value, str(world)) for called in told)


def begins_where(parts: Sequence[Tensor], total: object, where: str) -> Finding:
    """Passes if neighbours in a sum [length] that differ, as `ORDERS` makes them, are in different parts, of
    which the indices are given.
    """
    allowed = {int(part[0]) for part in parts if len(part)}
    told = isinstance(total, Tensor) and total.layout is torch.strided and not total.is_meta
    flat = total.flatten().tolist() if isinstance(total, Tensor) and told else []
    seen = [index for index in range(1, len(flat)) if flat[index] != flat[index - 1]]
    text = (
        f"with {where}, which have 2**60, 1, -2**60, 1 in all elements, each rank in turn (with nodes, the "
        f"first of each; the others 0), elements {seen} of the sum were added up in another order than the "
        f"one before them, so chunks begin there; those of tensor_split begin at {sorted(allowed)}."
    )
    return Finding(allowed.issuperset(seen), text)
