"""Whether the orders in which the epochs of a training have their samples were drawn one by one.

An order that is turned, reversed, cut in pieces or used again keeps neighbours together; one that is computed
goes on in steps of one length. Of a few dozen samples hardly any two drawn orders do so.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise

from graders.grading.kit import Finding

Order = Sequence[Sequence[int]]
"""The numbers of an epoch's samples, 0 to n - 1: a list for each rank, in the order in which it has them."""


def drawn_anew(epochs: Sequence[Order], samples: int) -> Finding:
    """Passes if no epoch has its samples in steps of one length, and no two have most of their neighbours, or
    nearly all of a rank's samples, in common.

    samples: n, which should be some dozens, and some on each rank.
    """
    for number, order in enumerate(epochs):
        steps = [(after - before) % samples for part in order for before, after in pairwise(part)]
        step, times = Counter(steps).most_common(1)[0] if steps else (0, 0)
        if 2 * times > len(steps):
            text = f"epoch {number} is not shuffled: mostly {step} lies between a sample and the next"
            return Finding(False, f"{text}, {_told(order)}.")
    for (earlier, one), (later, other) in combinations(enumerate(epochs), 2):
        which = f"epochs {earlier} and {later}"
        together, pairs = len(_neighbours(one) & _neighbours(other)), len(_neighbours(one))
        if 2 * together > pairs:
            text = f"{which} have {together} of {pairs} pairs of neighbours in common"
            return Finding(False, f"{text}: {_told(one)}, and {_told(other)}.")
        if len(one) > 1 and (same := _same_parts(one, other)):
            return Finding(False, f"in {which} {same}: {_told(one)}, and {_told(other)}.")
    return Finding(True, f"{len(epochs)} epochs, each in an order of its own.")


def _neighbours(order: Order) -> set[frozenset[int]]:
    """The pairs of samples of which one comes directly after the other on a rank."""
    return {frozenset(pair) for part in order for pair in pairwise(part)}


def _same_parts(one: Order, other: Order) -> str:
    """Two ranks that have nearly all of their samples in common, in words; empty if there are none."""
    for rank, part in enumerate(one):
        for rank_then, part_then in enumerate(other):
            common = len(set(part) & set(part_then))
            if 8 * common > 7 * len(part):
                return f"rank {rank} and then rank {rank_then} have {common} of {len(part)} samples in common"
    return ""


def _told(order: Order) -> str:
    return f"{[list(part) for part in order] if len(order) > 1 else list(order[0])}"
