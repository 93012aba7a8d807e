"""The grader of `hsdp_average`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from graders.grading.cases import both, vary
from graders.grading.communication import in_words
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_12.drivers import averages

RIGHT = ("the shard", "any length", "any groups")


@dataclass(frozen=True, slots=True)
class Nodes(Ranks):
    """g: ranks of a node. shapes: of the gradients. mixed: whether a node has other ranks than neighbours."""

    ranks: int = feature(6, "{} ranks")
    g: int = feature(3, "{} on each node")
    shapes: tuple[tuple[int, ...], ...] = feature(((3,), (2, 6)), "gradients of shapes {}")
    mixed: bool = feature(False, lambda mixed: "ranks on nodes in another order" if mixed else "")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))

    @property
    def within(self) -> list[list[int]]:
        """The ranks of each node."""
        ranks = torch.arange(self.ranks)
        return (ranks.view(self.g, -1).t().flip(0) if self.mixed else ranks.view(-1, self.g)).tolist()


def drawn(rng: Rng, nodes: Nodes) -> list[Arguments]:
    """Gradients, the ranks of each node, and those of one place, in ascending order."""
    across = [sorted(ranks) for ranks in zip(*nodes.within, strict=True)]
    return [
        [[rng.normal(*shape, dtype=nodes.dtype) for shape in nodes.shapes], nodes.within, across]
        for _ in range(nodes.ranks)
    ]


def two_calls(tried: Tried[Any]) -> Finding:
    """Passes if each rank makes these two collectives, and no other; one of a rank alone may be left out."""
    nodes, seen = tried.case.features, tried.seen
    ranks = {"reduce_scatter": nodes.g, "all_reduce": nodes.ranks // nodes.g}
    for rank, (events, shard) in enumerate(zip(seen.by_rank, seen.results[0], strict=True)):
        calls = ["reduce_scatter" if event.op.startswith("reduce_scatter") else event.op for event in events]
        needed = [call for call in ranks if call in calls or ranks[call] > 1]
        if calls != needed:
            said = f"rank {rank} calls {in_words(calls)}; expected {in_words(needed)}."
            return Finding(False, said, Kind.TOO_MUCH)
        if "all_reduce" in calls and events[-1].nbytes > shard.nbytes:
            what = f"Bytes that rank {rank} gives to all_reduce"
            return compare.at_most(events[-1].nbytes, shard.nbytes, what, kind=Kind.TOO_MUCH)
    return Finding(True, "Every rank makes a reduce-scatter, and an all-reduce of its shard.")


@on_ranks(
    base=Nodes(),
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "the shard",
            3,
            "Sum up within the node, so that each rank has a part of the sum; sum these up across nodes; and "
            "divide by the number of all ranks.",
            vary=vary(dtype=(torch.float64,)),
        ),
        Criterion(
            "any length",
            1,
            "Fill up with zeros to a multiple of g, at the end of all numbers.",
            vary=vary(shapes=(((2, 3),), ((1,),), ((2, 3), (), (3,)))),
        ),
        Criterion(
            "any groups",
            1,
            "A rank's place is that in `within`. There may be one node, or one rank a node.",
            vary=both(ranks=1, g=1) + both(g=2, mixed=True),
        ),
        Criterion("gradients kept", 1, "Collectives work in place: give them copies.", needs=RIGHT, how=kept),
        Criterion(
            "calls and bytes",
            3,
            "What crosses from node to node is the shard, n / g numbers: first one reduce-scatter in "
            "`within`, then one all-reduce in `across`.",
            needs=(*RIGHT, "gradients kept"),
            how=two_calls,
        ),
    ),
    hints=(
        "After which collective does each rank of a node have the node's sum of 1 / g of all numbers?",
        "Which ranks then hold the same part, each for its own node?",
        "torch.cat([each.flatten() for each in gradients]) is one tensor of n numbers, filled up by "
        "torch.nn.functional.pad.",
    ),
    arguments=drawn,
    calls=None,
    driver=averages.averaged,
)
def hsdp_average(nodes: Nodes, given: list[Arguments]) -> list[Expected]:
    """The mean of gradients, of which each rank has a shard."""
    whole = torch.stack([torch.cat([x.flatten() for x in gradients]) for gradients, *_ in given]).mean(0)
    shards = functional.pad(whole, (0, -len(whole) % nodes.g)).chunk(nodes.g)
    places = {rank: place for node in nodes.within for place, rank in enumerate(node)}
    names = ("gradients", "within", "across")
    return [
        Expected(shards[places[rank]], dict(zip(names, own, strict=True)), returned=None)
        for rank, own in enumerate(given)
    ]
