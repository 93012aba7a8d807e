"""Units whose weights are cut over ranks: steps of some of them, one behind the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from course_lib.cluster.topology import Cluster, Link
from graders.grading.judging import feature
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_09.drivers import units as drivers
from graders.units.unit_09.drivers.units import UnitsReply
from graders.units.unit_09.held import length_of, part_of
from graders.units.unit_09.models import Rung

LINK = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts what a rank computes by far."""
NEAR = 1e-4, 1e-4
MADE, FORWARD, GRADIENTS, STEPS = "made", "forward", "forward and backward", "two steps"
Run = Observed[UnitsReply]


@dataclass(frozen=True, slots=True)
class Setting:
    """asked: how much is looked at. block: an `Assorted` in place of all of it. deep: units whose weights
    outweigh activations, of which is counted how much is held. early: every unit is told to start before it
    is called.
    """

    ranks: int = feature(2, lambda ranks: compare.counted(ranks, "rank"))
    units: int = feature(2, lambda units: compare.counted(units, "unit"))
    asked: str = feature(MADE, "{}")
    width: int = feature(4, "width {}")
    deep: bool = feature(False, lambda deep: "large weights" if deep else "")
    early: bool = feature(False, lambda early: "start() before forward" if early else "")
    block: bool = feature(False, lambda block: "a block with several inputs and results" if block else "")


@dataclass(frozen=True, slots=True)
class Step:
    """Of all ranks the results, the mean gradients of each unit, and the gradients of the inputs."""

    results: list[Tensor]
    means: list[list[Tensor]]
    inputs: list[Tensor]


@dataclass(frozen=True)
class Units:
    """Units of `Rung`s. values: of each one's parameters. batches[r]: rank r's [B, width], one a step."""

    setting: Setting
    values: list[list[Tensor]]
    batches: list[list[Tensor]]

    @classmethod
    def draw(cls, rng: Rng, case: Setting) -> "Units":
        """Steps of one sample each."""
        width, steps = case.width, {MADE: 0, GRADIENTS: 1}.get(case.asked, 2)
        shapes: list[tuple[int, ...]] = [(width,), (width + 2, width), (width + 2,), (width, width + 1)]

        values = [[rng.normal(*shape) / width**0.5 for shape in shapes] for _ in range(case.units)]
        return cls(case, values, [[rng.normal(1, width) for _ in range(steps)] for _ in range(case.ranks)])

    def launch(self, answer: Answer, *, together: bool = False) -> Run:
        ranks, asked = self.setting.ranks, self.setting.asked
        how = {"together": together, "backward": asked != FORWARD, "early": self.setting.early}
        cluster = Cluster(devices_per_node=ranks, intra_node=LINK)
        given = self.values, per_rank(self.batches), how
        return answer.launch(drivers.units, *given, ranks=ranks, cluster=cluster, memory=self.setting.deep)

    def results(self, run: Run) -> Iterator[Finding]:
        """Of shards, results and gradients, as far as they are asked for."""
        for rank, reply in enumerate(run.results):
            for number, (shard, own) in enumerate(compare.side_by_side(reply.shards, self.values)):
                yield compare.close(
                    shard, self._part(own, rank), f"the shard of unit {number} on rank {rank}"
                )
            yield Finding(not reply.changed, f"rank {rank}: a module given is not as it was.")
            yield compare.equal(reply.others, 0, f"Parameters of units on rank {rank} that are no shards")
            if self.setting.asked != MADE:
                for step, (seen, each) in enumerate(compare.side_by_side(reply.results, self.expected)):
                    what = f"what comes out of step {step} on rank {rank}"
                    yield compare.close(seen, each.results[rank], what, *NEAR)
            if self.setting.asked in (GRADIENTS, STEPS):
                for step, (gradients, each) in enumerate(
                    compare.side_by_side(reply.gradients, self.expected)
                ):
                    wanted = [*(self._part(own, rank) for own in each.means), each.inputs[rank]]
                    for number, (got, want) in enumerate(compare.side_by_side(gradients, wanted)):
                        unit = f"shard.grad of unit {number}" if number < len(each.means) else "x.grad"
                        yield compare.close(got, want, f"{unit} on rank {rank} after step {step}", *NEAR)

    def _part(self, tensors: list[Tensor], rank: int) -> Tensor:
        return part_of(tensors, self.setting.ranks, rank)

    @cached_property
    def expected(self) -> list[Step]:
        """Step by step."""
        steps = []
        totals = [[torch.zeros_like(each) for each in own] for own in self.values]
        for step in range(len(self.batches[0])):
            factor = 2 ** (1 - step)
            model = nn.Sequential(
                *(Rung(number, [each * factor for each in own]) for number, own in enumerate(self.values))
            )
            leaves = [own[step].clone().requires_grad_() for own in self.batches]
            results = [model(leaf) for leaf in leaves]
            torch.autograd.backward([result.sum() for result in results])
            for total, rung in zip(totals, model, strict=True):
                for each, parameter in zip(total, rung.parameters(), strict=True):
                    each += 0 if parameter.grad is None else parameter.grad / len(leaves)
            inputs = [leaf.grad for leaf in leaves if leaf.grad is not None]
            outputs = [each.detach() for each in results]
            steps.append(Step(outputs, [[each.clone() for each in own] for own in totals], inputs))
        return steps

    # --- Bytes on each rank

    @property
    def whole(self) -> int:
        """Of a unit's weights."""
        return sum(each.nbytes for each in self.values[0])

    @property
    def of_shards(self) -> int:
        """Of a rank's shards."""
        first = self.values[0]
        length = length_of(sum(each.numel() for each in first), self.setting.ranks)
        return self.setting.units * length * first[0].element_size()

    @property
    def given(self) -> int:
        """Of a driver's arguments: values, batches."""
        return self.setting.units * self.whole + sum(x.nbytes for x in self.batches[0])
