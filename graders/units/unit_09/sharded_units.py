"""Units whose weights are cut over ranks: steps of some of them, one behind the other, and their calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.communication.events import Event
from graders.grading.communication import Step, steps_of
from graders.grading.judging import feature
from graders.grading.kit import Answer, AnswerFailed, FailureKind, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_09.drivers import units as drivers
from graders.units.unit_09.drivers.units import Passed
from graders.units.unit_09.held import part_of
from graders.units.unit_09.models import Rung, computes, reaches

LINK = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts what a rank computes by far."""
NEAR = 1e-4, 1e-4
MADE, FORWARD, GRADIENTS, STEPS = "made", "forward", "forward and backward", "two steps"
Run = Observed[Passed]


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


@dataclass(frozen=True)
class Units:
    """Units of `Rung`s. values: of each one's parameters. batches[r]: rank r's [1, width], one a step."""

    setting: Setting
    values: list[list[Tensor]]
    batches: list[list[Tensor]]

    @classmethod
    def draw(cls, rng: Rng, case: Setting) -> "Units":
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
        for rank, (shards, results, gradients, changed) in enumerate(run.results):
            for number, (shard, own) in enumerate(compare.side_by_side(shards, self.values)):
                what = f"the shard of unit {number} on rank {rank}"
                yield compare.close(shard, self.part(own, rank), what)
            yield compare.equal(changed, [], f"what is not as it should be on rank {rank}")
            if self.setting.asked == MADE:
                continue
            for step, (seen, (wanted, _, _)) in enumerate(compare.side_by_side(results, self.expected)):
                yield compare.close(
                    seen, wanted[rank], f"what comes out of step {step} on rank {rank}", *NEAR
                )
            if self.setting.asked == FORWARD:
                continue
            for step, (seen, (_, means, inputs)) in enumerate(compare.side_by_side(gradients, self.expected)):
                every = [*(self.part(own, rank) for own in means), inputs[rank]]
                names = [*(f"shard.grad of unit {number}" for number in range(len(means))), "x.grad"]
                for name, (got, want) in zip(names, compare.side_by_side(seen, every), strict=True):
                    yield compare.close(got, want, f"{name} on rank {rank} after step {step}", *NEAR)

    def part(self, tensors: list[Tensor], rank: int) -> Tensor:
        return part_of(tensors, self.setting.ranks, rank)

    @cached_property
    def expected(self) -> list[tuple[list[Tensor], list[list[Tensor]], list[Tensor]]]:
        """Of each step the results of all ranks, the mean gradients of each unit, and those of the inputs."""
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
            means = [[each.clone() for each in own] for own in totals]
            inputs = [leaf.grad for leaf in leaves if leaf.grad is not None]
            steps.append(([each.detach() for each in results], means, inputs))
        return steps


Half = tuple[Step, str, list[Event], list[Event]]
"""A step of a rank, "forward" or "backward", its calls, and the marks when each unit computes, in order."""


def halves_of(run: Run) -> Iterator[Half]:
    """Both passes of every step of every rank. Raises AnswerFailed if a mark is not there."""
    for step in steps_of(run, "backward ends"):
        turn = step.marks.get("backward begins")
        if turn is None:
            raise AnswerFailed(FailureKind.UNREADABLE, f"{step} has no backward.")
        for name, label in (("forward", computes), ("backward", reaches)):
            calls = [call for call in step.calls if (call.sequence < turn.sequence) == (name == "forward")]
            own = [label(number) for number in range(len(step.marks))]
            marks = [step.marks[each] for each in own if each in step.marks]
            yield step, name, calls, marks if name == "forward" else marks[::-1]


def calls(units: Units, run: Run) -> Finding:
    """Passes if each pass has its calls; what one rank calls is left open, since it has nobody to ask."""
    count = units.setting.units
    if units.setting.ranks == 1:
        return Finding(True, "One rank sends nothing.")
    for step, name, made, _ in halves_of(run):
        gathers, scatters = of_family(made, "all_gather"), of_family(made, "reduce_scatter")
        # Where backward does not need the weights, such as in a first layer, it need not gather them.
        enough = len(gathers) == count if name == "forward" else len(gathers) <= count
        if not enough or len(scatters) != count * (name == "backward") or len(made) > len(gathers + scatters):
            told = ", ".join(call.op for call in made) or "nothing"
            wanted = "all_gather" if name == "forward" else "all_gather and reduce_scatter"
            said = f"{step}, {name} of {count} units calls {told}; expected {wanted}, once a unit."
            return Finding(False, said)
    return Finding(True, "Forward gathers once, backward gathers once and scatters once, for each unit.")


def of_family(calls: list[Event], family: str) -> list[Event]:
    """Those whose name begins like this."""
    return [call for call in calls if call.op.startswith(family)]
