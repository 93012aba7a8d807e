"""Unit 12, the mean of gradients on nodes: shards within a node, copies of them across nodes."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_12.drivers import averages as drivers
from graders.units.unit_12.drivers.averages import AverageReply


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "the shard",
            3,
            "Sum up within the node, so that each rank has a part of the sum; sum these up across nodes; and "
            "divide by the number of all ranks.",
        ),
        Criterion("any length", 1, "Fill up with zeros to a multiple of g, at the end of all numbers."),
        Criterion(
            "any groups",
            1,
            "A rank's place is that in `within`; there may be one node, or one rank a node, and ranks in "
            "neither group.",
        ),
        Criterion(
            "gradients kept",
            1,
            "Collectives work in place: give them copies, also where one gradient or one rank is all there "
            "is. The dtype stays, any layout in memory is read in the order of indices, and a second call "
            "returns what is right for it.",
            needs=("the shard", "any length", "any groups"),
        ),
        Criterion(
            "bytes between nodes",
            2,
            "What crosses from node to node is the shard, n / g numbers: first within, then across.",
            needs=("the shard", "any length", "any groups", "gradients kept"),
        ),
        Criterion(
            "one call each",
            1,
            "One reduce-scatter in `within` and one all-reduce in `across`.",
            needs=("the shard", "any length", "any groups", "bytes between nodes"),
        ),
    ),
    hints=(
        "After which collective does each rank of a node have the node's sum of 1 / g of all numbers?",
        "Which ranks then hold the same part, each for its own node?",
        "torch.cat([each.flatten() for each in gradients]) is one tensor of n numbers, filled up by "
        "torch.nn.functional.pad.",
    ),
)
def hsdp_average(answer: Answer, rng: Rng) -> Findings:
    """Gradients that divide by the ranks of a node, then others, then other groups."""
    even = Averaged.drawn(rng, 2, 3, [(3,), (2, 6)])
    run = even.launch(answer)
    yield "the shard", even.right(run)
    odd = [
        Averaged.drawn(rng, 3, 2, [(1,)]),
        Averaged.drawn(rng, 2, 4, [(2, 3), (), (0, 2), (2,)]),
        Averaged.drawn(rng, 2, 3, [(7,)]),
        Averaged.drawn(rng, 1, 4, [(2,)]),
    ]
    odd_runs = [each.launch(answer) for each in odd]
    yield "any length", compare.first_failure(map(Averaged.right, odd, odd_runs))
    others = [
        Averaged.drawn(rng, 1, 3, [(2, 3)]),
        Averaged.drawn(rng, 3, 1, [(4,)]),
        Averaged.drawn(rng, 1, 1, [(2, 2)]),
        Averaged.drawn(rng, 3, 2, [(2, 3)], [[1, 4], [0, 3], [2, 5]]),
        replace(Averaged.drawn(rng, 4, 2, [(2, 3)]), models=2),
    ]
    other_runs = [each.launch(answer) for each in others]
    yield "any groups", compare.first_failure(map(Averaged.right, others, other_runs))
    strided = Averaged.drawn(rng, 2, 2, [(3, 2), (2, 3)], dtype=torch.float64, gaps=True)
    short = Averaged.drawn(rng, 2, 2, [(3,), (2,)], dtype=torch.bfloat16)
    every = [(even, run), *zip(odd, odd_runs, strict=True), *zip(others, other_runs, strict=True)]
    kept = [(each, each.launch(answer)) for each in (strided, short)]
    looked_at = [Averaged.right(*each) for each in kept]
    looked_at += (each.unharmed(seen) for each, seen in every + kept)
    yield "gradients kept", compare.first_failure(looked_at)
    every += kept
    yield "bytes between nodes", compare.first_failure(each.between(seen) for each, seen in every)
    yield "one call each", compare.first_failure(each.calls(seen) for each, seen in every)


@dataclass(frozen=True, slots=True)
class Averaged:
    """Each rank's gradients, and those of a second call, on nodes whose ranks are `within`. models: how many
    there are, each on as many of the nodes.
    """

    gradients: list[list[Tensor]]
    others: list[list[Tensor]]
    within: list[list[int]]
    gaps: bool
    models: int = 1

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        nodes: int,
        g: int,
        shapes: list[tuple[int, ...]],
        within: list[list[int]] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        gaps: bool = False,
    ) -> "Averaged":
        """within: by default neighbouring ranks are on a node. In bfloat16 all sums are exact."""
        p = nodes * g
        exact = dtype == torch.bfloat16
        gradients, others = (
            [
                [
                    (p * rng.integers(-5, 5, *shape) if exact else rng.normal(*shape, dtype=dtype)).to(dtype)
                    for shape in shapes
                ]
                for _ in range(p)
            ]
            for _ in range(2)
        )
        return cls(gradients, others, within or torch.arange(p).view(nodes, g).tolist(), gaps)

    @property
    def across(self) -> list[list[int]]:
        """Ranks of one model and one place, in ascending order."""
        return [sorted(ranks) for nodes in self.of_models for ranks in zip(*nodes, strict=True)]

    @property
    def of_models(self) -> list[list[list[int]]]:
        """The nodes of each model."""
        return [self.within[first : first + self.nodes] for first in range(0, len(self.within), self.nodes)]

    @property
    def nodes(self) -> int:
        """How many nodes a model has."""
        return len(self.within) // self.models

    @property
    def shard(self) -> int:
        """Bytes of a rank's shard."""
        flat = torch.cat([each.flatten() for each in self.gradients[0]])
        return -(-len(flat) // len(self.within[0])) * flat.element_size()

    def launch(self, answer: Answer) -> Observed[AverageReply]:
        groups = self.within, self.across
        given = per_rank(self.gradients), per_rank(self.others)
        return answer.launch(drivers.averaged, *given, *groups, self.gaps, ranks=len(self.gradients))

    def expected(self, gradients: list[list[Tensor]]) -> list[Tensor]:
        """Each rank's shard of the mean."""
        flat = [torch.cat([each.flatten() for each in own]) for own in gradients]
        g = len(self.within[0])
        found = {}
        for nodes in self.of_models:
            whole = torch.stack([flat[rank] for node in nodes for rank in node]).double().mean(0)
            parts = functional.pad(whole, (0, -len(whole) % g)).to(flat[0].dtype).chunk(g)
            found.update({rank: part for node in nodes for rank, part in zip(node, parts, strict=True)})
        return [found[rank] for rank in range(len(self.gradients))]

    def right(self, run: Observed[AverageReply]) -> Finding:
        what = f"the shard, with {compare.counted(self.nodes, 'node')} of {len(self.within[0])},"
        seen = [reply.result for reply in run.results]
        return compare.close_on_all_ranks(seen, self.expected(self.gradients), what, *self.tolerances)

    @property
    def tolerances(self) -> tuple[float, float]:
        return (1e-12, 1e-12) if self.gradients[0][0].dtype == torch.float64 else (1e-5, 1e-6)

    def unharmed(self, run: Observed[AverageReply]) -> Finding:
        """Passes if gradients are as they were, a second call was right, and left the first one's result."""
        again, first = [reply.again for reply in run.results], [reply.first for reply in run.results]
        for rank, reply in enumerate(run.results):
            if len(reply.gradients) != len(self.gradients[rank]):
                said = (
                    f"the list of gradients has {compare.counted(len(reply.gradients), 'tensor')} afterwards"
                )
                return Finding(False, f"{said} on rank {rank}; expected {len(self.gradients[rank])}.")
            if not reply.new:
                return Finding(
                    False, f"what rank {rank} returns has the memory of a gradient; expected a new one."
                )
        left = (
            compare.equal(seen, given, f"a gradient afterwards on rank {rank}")
            for rank, (reply, own) in enumerate(zip(run.results, self.gradients, strict=True))
            for seen, given in compare.side_by_side(reply.gradients, own)
        )
        once_more = compare.close_on_all_ranks(
            again, self.expected(self.others), "what a second call returns", *self.tolerances
        )
        stays = compare.close_on_all_ranks(
            first, self.expected(self.gradients), "the first result after a second call", *self.tolerances
        )
        return compare.first_failure((*left, once_more, stays))

    def between(self, run: Observed[AverageReply]) -> Finding:
        """Passes if no rank sends more across nodes than an all-reduce of its shard does, in each call."""
        node = {rank: number for number, ranks in enumerate(self.within) for rank in ranks}
        sent = [0] * len(node)
        for event in run.events:
            meets = event.group if event.peer is None else (event.rank, event.peer)
            if len({node[rank] for rank in meets}) > 1:
                sent[event.rank] += event.sent
        nodes = self.nodes
        allowed = 2 * (2 * (nodes - 1) * -(-self.shard // nodes))  # rounded up: parts may be uneven
        what = f"Bytes to other nodes of a rank in two calls, with {nodes} nodes of {len(self.within[0])}"
        return compare.at_most(max(sent), allowed, what, kind=Kind.TOO_MUCH)

    def calls(self, run: Observed[AverageReply]) -> Finding:
        """Passes if each rank made these two collectives, twice, and no other call."""
        wanted = ["reduce_scatter", "all_reduce"] * 2
        for rank in range(len(self.gradients)):
            seen = [
                call if call == "all_reduce" else call[: len("reduce_scatter")] for call in run.calls(rank)
            ]
            # A collective of one rank may be left out.
            needed = [
                call
                for call in wanted
                if call in seen or (len(self.within[0]) if call == "reduce_scatter" else self.nodes) > 1
            ]
            if seen != needed:
                told = f"called twice, rank {rank} calls {', '.join(run.calls(rank)) or 'nothing'}"
                return Finding(False, f"{told}; expected {', '.join(needed)}.", Kind.TOO_MUCH)
        return Finding(True, "Every call makes a reduce-scatter and an all-reduce.")
