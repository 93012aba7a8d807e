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
from graders.units.unit_09.held import length_of, part_of
from graders.units.unit_09.models import Rung
from graders.units.unit_09.replies import UnitsReply

LINK = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts what a rank computes by far."""
NEAR = 1e-4, 1e-4
MADE, FORWARD, GRADIENTS, STEPS = "made", "forward", "forward and backward", "two steps"
Run = Observed[UnitsReply]


@dataclass(frozen=True, slots=True)
class Setting:
    """asked: how much is looked at. tied: a weight has two names. odd: another module in place of all of it.

    deep: units whose weights outweigh activations, of which is counted how much is held. early: every unit
    is told to start before it is called.
    """

    ranks: int = feature(2, lambda ranks: compare.counted(ranks, "rank"))
    units: int = feature(2, lambda units: compare.counted(units, "unit"))
    asked: str = feature(MADE, "{}")
    width: int = feature(4, "width {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    tied: bool = feature(False, lambda tied: "a weight with two names" if tied else "")
    deep: bool = feature(False, lambda deep: "large weights" if deep else "")
    early: bool = feature(False, lambda early: "start() before forward" if early else "")
    odd: str = feature("", "{}")


@dataclass(frozen=True)
class Units:
    """Units of `Rung`s. values: of each one's parameters, as it is made. trained: in place of these, later.

    batches[r]: rank r's inputs [B, width], one a step.
    """

    setting: Setting
    values: list[list[Tensor]]
    trained: list[list[Tensor]]
    batches: list[list[Tensor]]

    @classmethod
    def draw(cls, rng: Rng, case: Setting) -> "Units":
        """Steps of one sample each."""
        width, steps = case.width, {MADE: 0, GRADIENTS: 1}.get(case.asked, 2)
        # No layer is square: a transposed view has another shape.
        shapes: list[tuple[int, ...]] = [(width,), (width + 2, width), (width + 2,), (width, width + 2)]

        def values() -> list[list[Tensor]]:
            return [
                [
                    rng.normal(*shape, dtype=case.dtype) / width**0.5
                    for shape in shapes[: 3 if case.tied else 4]
                ]
                for _ in range(case.units)
            ]

        batches = [[rng.normal(1, width, dtype=case.dtype) for _ in range(steps)] for _ in range(case.ranks)]
        return cls(case, values(), values(), batches)

    def launch(self, answer: Answer, *, together: bool = False) -> Run:
        ranks, asked = self.setting.ranks, self.setting.asked
        shards = [[part_of(own, ranks, rank) for own in self.trained] for rank in range(ranks)]
        return answer.launch(
            drivers.units,
            self.values,
            per_rank(shards),
            per_rank(self.batches),
            {"together": together, "backward": asked != FORWARD, "early": self.setting.early},
            ranks=ranks,
            cluster=Cluster(devices_per_node=ranks, intra_node=LINK),
            memory=self.setting.deep,
        )

    def results(self, run: Run) -> Iterator[Finding]:
        """Of shards, results and gradients, as far as they are asked for."""
        asked, ranks = self.setting.asked, self.setting.ranks
        for rank, reply in enumerate(run.results):
            yield from self._made(rank, reply)
            if asked != MADE:
                yield from self._forward(rank, reply)
            if asked in (GRADIENTS, STEPS):
                for step, (seen, (_, means, inputs)) in enumerate(
                    compare.side_by_side(reply.gradients, self.expected)
                ):
                    named = {
                        f"shard.grad of unit {n}": part_of(own, ranks, rank) for n, own in enumerate(means)
                    }
                    wanted = [*named.items(), ("the inputs' gradient", inputs[rank])]
                    for got, (name, want) in compare.side_by_side(seen, wanted):
                        yield compare.close(got, want, f"{name} on rank {rank} after step {step}", *NEAR)

    def _made(self, rank: int, reply: UnitsReply) -> Iterator[Finding]:
        """Whether each unit has this rank's part as its only parameter, and its module is as it was."""
        for number, (shard, own) in enumerate(compare.side_by_side(reply.shards, self.values)):
            wanted = part_of(own, self.setting.ranks, rank)
            yield compare.close(shard, wanted, f"the shard of unit {number} on rank {rank}")
        yield Finding(not reply.changed, f"rank {rank}: a module given is not as it was.")
        yield compare.equal(reply.others, 0, f"Parameters of units on rank {rank} that are no shards")

    def _forward(self, rank: int, reply: UnitsReply) -> Iterator[Finding]:
        """Whether every forward gives what the modules give with the shards' weights."""
        for step, (seen, (results, _, _)) in enumerate(compare.side_by_side(reply.results, self.expected)):
            yield compare.close(seen, results[rank], f"what comes out of step {step} on rank {rank}", *NEAR)
        model = nn.Sequential(*(Rung(number, own) for number, own in enumerate(self.trained)))
        with torch.no_grad():
            without = model(self.batches[rank][0])
        yield compare.close(reply.without, without, f"what comes out under no_grad on rank {rank}", *NEAR)

    @cached_property
    def expected(self) -> list[tuple[list[Tensor], list[list[Tensor]], list[Tensor]]]:
        """Of each step all ranks' results, the mean gradients of each unit, and those of the inputs."""
        steps = []
        totals = [[torch.zeros_like(each) for each in own] for own in self.trained]
        for step in range(len(self.batches[0])):
            model = nn.Sequential(
                *(
                    Rung(number, [each * 2 ** (1 - step) for each in own])
                    for number, own in enumerate(self.trained)
                )
            )
            leaves = [own[step].clone().requires_grad_() for own in self.batches]
            results = [model(leaf) for leaf in leaves]
            torch.autograd.backward([result.sum() / len(results) for result in results])
            for total, rung in zip(totals, model, strict=True):
                for each, parameter in zip(total, rung.parameters(), strict=True):
                    each += torch.zeros_like(each) if parameter.grad is None else parameter.grad
            inputs = [leaf.grad * len(leaves) for leaf in leaves if leaf.grad is not None]
            outputs = [each.detach() for each in results]
            steps.append((outputs, [[each.clone() for each in own] for own in totals], inputs))
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
        """Of a driver's arguments: values, shards, batches."""
        return self.setting.units * self.whole + self.of_shards + sum(x.nbytes for x in self.batches[0])
