"""The grader of `hsdp_average`."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_12.drivers import averages as drivers
from graders.units.unit_12.drivers.averages import GradientsReply

Run = Observed[GradientsReply]
RIGHT = ("the shard", "any length", "any groups")


@dataclass(frozen=True, slots=True)
class Nodes:
    """nodes: of g ranks each. shapes: of the gradients. mixed: whether other ranks than neighbours are on a
    node.
    """

    nodes: int = feature(2, "{} nodes")
    g: int = feature(3, "of {}")
    shapes: tuple[tuple[int, ...], ...] = feature(((3,), (2, 6)), "gradients of shapes {}")
    mixed: bool = feature(False, lambda mixed: "ranks on nodes in another order" if mixed else "")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))

    @property
    def within(self) -> list[list[int]]:
        """The ranks of each node."""
        ranks = torch.arange(self.nodes * self.g)
        return (ranks.view(self.g, -1).t().flip(0) if self.mixed else ranks.view(-1, self.g)).tolist()

    @property
    def across(self) -> list[list[int]]:
        """Ranks of one place, in ascending order."""
        return [sorted(ranks) for ranks in zip(*self.within, strict=True)]

    @property
    def shard(self) -> int:
        """Numbers of a rank's shard."""
        return -(-sum(torch.Size(shape).numel() for shape in self.shapes) // self.g)

    def expected(self, gradients: list[list[Tensor]]) -> list[Tensor]:
        """Each rank's shard of the mean."""
        whole = torch.stack([torch.cat([each.flatten() for each in own]) for own in gradients]).mean(0)
        parts = functional.pad(whole, (0, -len(whole) % self.g)).chunk(self.g)
        places = {rank: place for node in self.within for place, rank in enumerate(node)}
        return [parts[places[rank]] for rank in sorted(places)]


@one_by_one(
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
            vary=both(nodes=1, g=1) + both(nodes=3, g=2, mixed=True),
        ),
        Criterion(
            "gradients kept",
            1,
            "Collectives work in place: give them copies, also where one gradient is all there is.",
            needs=RIGHT,
            how=look("gradients kept"),
        ),
        Criterion(
            "calls and bytes",
            3,
            "What crosses from node to node is the shard, n / g numbers: first one reduce-scatter in "
            "`within`, then one all-reduce in `across`.",
            needs=(*RIGHT, "gradients kept"),
            how=look("calls and bytes"),
        ),
    ),
    hints=(
        "After which collective does each rank of a node have the node's sum of 1 / g of all numbers?",
        "Which ranks then hold the same part, each for its own node?",
        "torch.cat([each.flatten() for each in gradients]) is one tensor of n numbers, filled up by "
        "torch.nn.functional.pad.",
    ),
)
def hsdp_average(answer: Answer, nodes: Nodes, rng: Rng) -> tuple[Finding, Looks]:
    """The mean of gradients, of which each rank has a shard."""
    ranks = nodes.nodes * nodes.g
    gradients = [[rng.normal(*shape, dtype=nodes.dtype) for shape in nodes.shapes] for _ in range(ranks)]
    run: Run = answer.launch(drivers.averaged, per_rank(gradients), nodes.within, nodes.across, ranks=ranks)
    seen = [reply.result for reply in run.results]
    return compare.close_on_all_ranks(seen, nodes.expected(gradients), "the shard"), {
        "gradients kept": lambda: kept(run, gradients),
        "calls and bytes": lambda: compare.first_failure((between(nodes, run), two_calls(nodes, run))),
    }


def kept(run: Run, gradients: list[list[Tensor]]) -> Finding:
    """Passes if gradients are as they were, and the result is none of them."""
    found = []
    for rank, (reply, own) in enumerate(zip(run.results, gradients, strict=True)):
        found.append(compare.equal(reply.gradients, own, f"the gradients on rank {rank} afterwards"))
        found.append(compare.equal(reply.own, True, f"whether rank {rank} returns a new tensor"))
    return compare.first_failure(found)


def between(nodes: Nodes, run: Run) -> Finding:
    """Passes if no rank sends more across nodes than an all-reduce of its shard does."""
    node = {rank: number for number, ranks in enumerate(nodes.within) for rank in ranks}
    sent = [0] * len(node)
    for event in run.events:
        meets = event.group if event.peer is None else (event.rank, event.peer)
        if len({node[rank] for rank in meets}) > 1:
            sent[event.rank] += event.sent
    # Rounded up: parts may be uneven.
    part = -(-nodes.shard * nodes.dtype.itemsize // nodes.nodes)
    what = "Bytes of a rank to other nodes"
    return compare.at_most(max(sent), 2 * (nodes.nodes - 1) * part, what, kind=Kind.TOO_MUCH)


def two_calls(nodes: Nodes, run: Run) -> Finding:
    """Passes if each rank made these two collectives, and no other; one of a rank alone may be left out."""
    sizes = {"reduce_scatter": nodes.g, "all_reduce": nodes.nodes}
    for rank in range(len(run.results)):
        calls = run.calls(rank)
        seen = [call if call == "all_reduce" else call[: len("reduce_scatter")] for call in calls]
        needed = [call for call in sizes if call in seen or sizes[call] > 1]
        if seen != needed:
            told = f"rank {rank} calls {', '.join(calls) or 'nothing'}"
            return Finding(False, f"{told}; expected {', '.join(needed)}.", Kind.TOO_MUCH)
    return Finding(True, "Every rank makes a reduce-scatter and an all-reduce.")
