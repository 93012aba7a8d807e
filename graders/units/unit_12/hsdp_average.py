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
from graders.units.unit_12.drivers.averages import AverageReply

Gradients = list[list[Tensor]]
"""Of each rank."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """nodes: of each model, g ranks on each. shapes: of the gradients. mixed: whether other ranks than
    neighbours are on a node. models: how many there are. dtype, gaps: of the gradients, which stand
    transposed in memory then.
    """

    nodes: int = feature(2, "{} nodes")
    g: int = feature(3, "of {}")
    shapes: tuple[tuple[int, ...], ...] = feature(((3,), (2, 6)), "gradients of shapes {}")
    mixed: bool = feature(False, lambda mixed: "ranks on nodes in another order" if mixed else "")
    models: int = feature(1, lambda models: f"{models} models" if models > 1 else "")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    gaps: bool = feature(False, lambda gaps: "transposed in memory" if gaps else "")

    @property
    def ranks(self) -> int:
        return self.nodes * self.g * self.models

    @property
    def within(self) -> list[list[int]]:
        """The ranks of each node, those of the first model first."""
        ranks = torch.arange(self.ranks)
        return (ranks.view(self.g, -1).t().flip(0) if self.mixed else ranks.view(-1, self.g)).tolist()

    @property
    def of_models(self) -> list[list[list[int]]]:
        """The nodes of each model."""
        return [self.within[first : first + self.nodes] for first in range(0, len(self.within), self.nodes)]

    @property
    def across(self) -> list[list[int]]:
        """Ranks of one model and one place, in ascending order."""
        return [sorted(ranks) for nodes in self.of_models for ranks in zip(*nodes, strict=True)]

    @property
    def shard(self) -> int:
        """Numbers of a rank's shard."""
        return -(-sum(torch.Size(shape).numel() for shape in self.shapes) // self.g)

    def drawn(self, rng: Rng) -> Gradients:
        return [[rng.normal(*shape, dtype=self.dtype) for shape in self.shapes] for _ in range(self.ranks)]

    def expected(self, gradients: Gradients) -> list[Tensor]:
        """Each rank's shard of the mean."""
        flat = [torch.cat([each.flatten() for each in own]) for own in gradients]
        found = {}
        for nodes in self.of_models:
            whole = torch.stack([flat[rank] for node in nodes for rank in node]).double().mean(0)
            parts = functional.pad(whole, (0, -len(whole) % self.g)).to(self.dtype).chunk(self.g)
            found.update({rank: part for node in nodes for rank, part in zip(node, parts, strict=True)})
        return [found[rank] for rank in range(self.ranks)]

    def right(self, seen: list[object], gradients: Gradients, what: str) -> Finding:
        near = 1e-12 if self.dtype == torch.float64 else 1e-5
        return compare.close_on_all_ranks(seen, self.expected(gradients), what, near, near)


@one_by_one(
    base=Nodes(),
    possible=lambda nodes: nodes.models == 1 or nodes == Nodes(models=2, g=2),
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "the shard",
            3,
            "Sum up within the node, so that each rank has a part of the sum; sum these up across nodes; and "
            "divide by the number of all ranks.",
        ),
        Criterion(
            "any length",
            1,
            "Fill up with zeros to a multiple of g, at the end of all numbers.",
            vary=vary(shapes=(((2, 3),), ((1,),), ((2, 3), (), (0, 2), (3,)))),
        ),
        Criterion(
            "any groups",
            1,
            "A rank's place is that in `within`. The world may have ranks in neither group, so divide by the "
            "ranks of these nodes; and there may be one node, or one rank a node.",
            vary=both(nodes=1, g=1) + both(nodes=3, g=2, mixed=True) + vary(nodes=(1,)) + both(models=2, g=2),
        ),
        Criterion(
            "gradients kept",
            1,
            "Collectives work in place: give them copies, also where one gradient or one rank is all there "
            "is. The dtype stays, any layout in memory is read in the order of indices, and a second call "
            "returns what is right for it.",
            needs=("the shard", "any length", "any groups"),
            vary=vary(dtype=(torch.float64,), gaps=(True,)),
            how=look("gradients kept"),
        ),
        Criterion(
            "bytes between nodes",
            2,
            "What crosses from node to node is the shard, n / g numbers: first within, then across.",
            needs=("the shard", "any length", "any groups", "gradients kept"),
            how=look("bytes between nodes"),
        ),
        Criterion(
            "one call each",
            1,
            "One reduce-scatter in `within` and one all-reduce in `across`.",
            needs=("the shard", "any length", "any groups", "bytes between nodes"),
            how=look("one call each"),
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
    """The mean of gradients, and then of others of the same shapes."""
    gradients, others = nodes.drawn(rng), nodes.drawn(rng)
    groups = nodes.within, nodes.across
    given = per_rank(gradients), per_rank(others)
    run = answer.launch(drivers.averaged, *given, *groups, nodes.gaps, ranks=nodes.ranks)
    right = nodes.right([reply.result for reply in run.results], gradients, "the shard")
    return right, {
        "gradients kept": lambda: unharmed(nodes, run, gradients, others),
        "bytes between nodes": lambda: between(nodes, run),
        "one call each": lambda: two_calls(nodes, run),
    }


def unharmed(nodes: Nodes, run: Observed[AverageReply], given: Gradients, others: Gradients) -> Finding:
    """Passes if gradients are as they were, a second call was right, and left the first one's result."""
    found = [
        Finding(True, f"rank {rank} returns a new tensor, and its gradients are as they were.")
        if reply.new
        else Finding(False, f"what rank {rank} returns has the memory of a gradient; expected a new tensor.")
        for rank, reply in enumerate(run.results)
    ]
    found += [
        compare.equal(reply.gradients, own, f"the gradients afterwards on rank {rank}")
        for rank, (reply, own) in enumerate(zip(run.results, given, strict=True))
    ]
    again, first = [reply.again for reply in run.results], [reply.first for reply in run.results]
    found.append(nodes.right(again, others, "what a second call returns"))
    found.append(nodes.right(first, given, "the first result after a second call"))
    return compare.first_failure(found)


def between(nodes: Nodes, run: Observed[AverageReply]) -> Finding:
    """Passes if no rank sends more across nodes than an all-reduce of its shard does, in each call."""
    node = {rank: number for number, ranks in enumerate(nodes.within) for rank in ranks}
    sent = [0] * len(node)
    for event in run.events:
        meets = event.group if event.peer is None else (event.rank, event.peer)
        if len({node[rank] for rank in meets}) > 1:
            sent[event.rank] += event.sent
    # Rounded up: parts may be uneven.
    part = -(-nodes.shard * nodes.dtype.itemsize // nodes.nodes)
    what = "Bytes to other nodes of a rank in two calls"
    return compare.at_most(max(sent), 4 * (nodes.nodes - 1) * part, what, kind=Kind.TOO_MUCH)


def two_calls(nodes: Nodes, run: Observed[AverageReply]) -> Finding:
    """Passes if each rank made these two collectives, twice, and no other call; one of a rank alone may be
    left out.
    """
    sizes = {"reduce_scatter": nodes.g, "all_reduce": nodes.nodes}
    for rank in range(nodes.ranks):
        calls = run.calls(rank)
        seen = [call if call == "all_reduce" else call[: len("reduce_scatter")] for call in calls]
        needed = [call for call in ["reduce_scatter", "all_reduce"] * 2 if call in seen or sizes[call] > 1]
        if seen != needed:
            told = f"called twice, rank {rank} calls {', '.join(calls) or 'nothing'}"
            return Finding(False, f"{told}; expected {', '.join(needed)}.", Kind.TOO_MUCH)
    return Finding(True, "Every call makes a reduce-scatter and an all-reduce.")
