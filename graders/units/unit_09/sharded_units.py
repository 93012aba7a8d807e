"""Units whose weights are cut over ranks: steps of some of them, one behind the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from course_lib.cluster.topology import Cluster, Link
from graders.grading.communication import in_words, steps_of
from graders.grading.judging import feature
from graders.grading.kit import Answer, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.unit_09.drivers import units as drivers
from graders.units.unit_09.halves import halves_of
from graders.units.unit_09.held import at_most_held, held_at, length_of, most_held, part_of
from graders.units.unit_09.models import Rung, computes
from graders.units.unit_09.replies import UnitsReply

LINK = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts what a rank computes by far."""
SLACK = 1024
"""Bytes that small tensors may take, which nobody counts."""
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
        asked = self.setting.asked
        yield self.made(run)
        if asked != MADE:
            yield self.forward(run)
        for step in range({GRADIENTS: 1, STEPS: 2}.get(asked, 0)):
            yield self.gradients(run, step)

    def made(self, run: Run) -> Finding:
        """Passes if each unit has this rank's part as its only parameter, and its module is as it was."""
        ranks = len(self.batches)
        for rank, reply in enumerate(run.results):
            for number, (shard, own) in enumerate(compare.side_by_side(reply.shards, self.values)):
                what = f"the shard of unit {number} on rank {rank} of {ranks}"
                found = compare.close(shard, part_of(own, ranks, rank), what)
                if not found.passed:
                    return found
            if reply.changed:
                return Finding(False, f"rank {rank}: a module given is not as it was.")
            if reply.others:
                more = f"a unit has parameters besides its shard, {reply.others} in all"
                return Finding(
                    False,
                    f"rank {rank}: {more if reply.others > 0 else 'a shard is no parameter of its unit'}.",
                )
        return Finding(True, "Each unit has one parameter, this rank's part of the module's.")

    @cached_property
    def _expected(self) -> list[tuple[list[Tensor], list[list[Tensor]], list[Tensor]]]:
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

    def forward(self, run: Run) -> Finding:
        """Passes if every forward gives what the modules give with the shards' weights."""
        expected = [results for results, _, _ in self._expected]
        model = nn.Sequential(*(Rung(number, own) for number, own in enumerate(self.trained)))
        with torch.no_grad():
            without = [model(own[0]) for own in self.batches]
        for rank, reply in enumerate(run.results):
            where = f"on rank {rank} of {len(self.batches)}"
            pairs = compare.side_by_side(reply.results, expected)
            findings = [
                compare.close(seen, wanted[rank], f"what comes out of step {step} {where}", 1e-4, 1e-4)
                for step, (seen, wanted) in enumerate(pairs)
            ]
            said = f"what comes out under no_grad {where}"
            found = compare.first_failure(
                [*findings, compare.close(reply.without, without[rank], said, 1e-4, 1e-4)]
            )
            if not found.passed:
                return found
        return Finding(True, "Units compute what their modules do, with the weights of the shards.")

    def gradients(self, run: Run, step: int) -> Finding:
        """Passes if all shards and inputs have their gradients after this step."""
        ranks = len(self.batches)
        _, means, inputs = self._expected[step]
        for rank, reply in enumerate(run.results):
            seen = [own for own, _ in compare.side_by_side(reply.gradients, self._expected)][step]
            expected = [*(part_of(own, ranks, rank) for own in means), inputs[rank]]
            names = [f"shard.grad of unit {number}" for number in range(len(means))]
            wanted = [*zip([*names, "the inputs' gradient"], expected, strict=True)]
            for got, (name, each) in compare.side_by_side(seen, wanted):
                what = f"{name} on rank {rank} of {ranks} after step {step}"
                found = compare.close(got, each, what, 1e-4, 1e-4)
                if not found.passed:
                    return found
        return Finding(True, "All shards have their part of the mean gradient, and inputs their own.")

    # --- Memory

    @property
    def _whole(self) -> int:
        """Bytes of a unit's weights."""
        return sum(each.nbytes for each in self.values[0])

    def _of_shards(self) -> int:
        """Bytes of a rank's shards."""
        ranks, first = len(self.batches), self.values[0]
        length = length_of(sum(each.numel() for each in first), ranks)
        return len(self.values) * length * first[0].element_size()

    def _given(self) -> int:
        """Bytes of a driver's arguments: values, shards, batches."""
        return len(self.values) * self._whole + self._of_shards() + sum(b.nbytes for b in self.batches[0])

    def keeps(self, run: Run) -> Finding:
        """Passes if, once the units are made, a rank holds its shards, and no more of the modules."""
        ranks = len(self.batches)
        limit = self._given() + self._of_shards() + SLACK
        return at_most_held(
            [held_at(run, rank, "made") for rank in range(ranks)], [limit] * ranks, "Once made"
        )

    def lets_go(self, run: Run, begin: str, end: str, wholes: int) -> Finding:
        """Passes if between two marks a rank holds at most its shards and so many times a unit's weights.

        A unit's weights are there, its flat gradient, and what the two are made of; other units' are not.
        """
        ranks, width, count = len(self.batches), len(self.values[0][1]), len(self.values)
        activations = 6 * count * width * self.values[0][0].element_size()
        # Shards: as they were made, as they are, and after forward their gradients.
        shards = (2 if end == "forward ends" else 3) * self._of_shards()
        limit = self._given() + shards + wholes * self._whole + activations + SLACK
        seen = [most_held(run, rank, begin, end) for rank in range(ranks)]
        at_the_end = [held_at(run, rank, "backward ends") for rank in range(ranks)]
        rest = self._given() + 3 * self._of_shards() + self._whole // 2 + SLACK
        between = f"From the mark {begin!r} to the mark {end!r}"
        findings = [at_most_held(seen, [limit] * ranks, between)]
        if end == "backward ends":
            findings.append(at_most_held(at_the_end, [rest] * ranks, "After backward"))
        return compare.first_failure(findings)

    def two_at_once(self, run: Run) -> Finding:
        """Passes if, when a unit computes forward, a rank holds the weights of two units, and no third's."""
        ranks = len(self.batches)
        # Three quarters of a unit's weights: forward has left far less, a third unit would hold more.
        limits = [self._given() + 2 * self._of_shards() + 11 * self._whole // 4] * ranks
        numbers = range(len(self.values))
        held = [[held_at(run, rank, computes(number)) for rank in range(ranks)] for number in numbers]
        return compare.first_failure(
            at_most_held(own, limits, f"When unit {number} computes") for number, own in enumerate(held)
        )

    # --- Calls

    def calls(self, run: Run) -> Finding:
        """Passes if each pass has its calls, and sends no more bytes than they do."""
        ranks, count = len(self.batches), len(self.values)
        begin = min(event.sequence for event in run.events if event.rank == 0 and event.op == "evaluation")
        if before := [call.op for call in run.communication(0) if call.sequence < begin]:
            return Finding(False, f"{', '.join(before)} before the first forward, where no call is needed.")
        limit = 3 * (ranks - 1) * self._of_shards()
        for half in halves_of(run):
            seen = [call.op for call in half.calls]
            gathers, scatters = (_count(seen, family) for family in ("all_gather", "reduce_scatter"))
            forward = half.name == "forward"
            # Where backward does not need the weights, such as in a first layer, it need not gather them.
            right = gathers == count if forward else gathers <= count and scatters == count
            if not right or len(seen) != gathers + (0 if forward else scatters):
                wanted = "all_gather" if forward else "all_gather and reduce_scatter"
                made = ", ".join(seen) or "nothing"
                return Finding(
                    False, f"{half} of {count} units calls {made}; expected {wanted}, once a unit."
                )
        for step in steps_of(run, "backward ends"):
            if (sent := sum(call.sent for call in step.calls)) > limit:
                return Finding(False, f"{step} sends {sent:,} bytes; allowed are {limit:,}.")
        return self._calls_without_backward(run)

    def _calls_without_backward(self, run: Run) -> Finding:
        """Passes if a forward under no_grad gathers each unit's weights once, and calls nothing else."""
        count = len(self.values)
        for rank in range(len(self.batches)):
            begin, end = (
                min(each.sequence for each in run.events if each.rank == rank and each.op == label)
                for label in ("evaluation", "evaluated")
            )
            own = [each.op for each in run.communication(rank) if begin <= each.sequence < end]
            if len(own) != count or _count(own, "all_gather") != count:
                said = f"rank {rank}: under no_grad {count} units call {', '.join(own) or 'nothing'}"
                return Finding(False, f"{said}; expected all_gather, once a unit.")
        return Finding(True, "Forward gathers once, backward gathers once and scatters once, for each unit.")

    def started(self, run: Run) -> Finding:
        """Passes if start() returns before the weights are there."""
        for step in steps_of(run, "backward ends"):
            call, mark = step.calls[0], step.marks.get("started")
            begun = mark is not None and call.sequence < mark.sequence
            if mark is None or not begun or mark.start >= call.end:
                said = "it waited for the weights" if begun else "no all-gather has begun"
                return Finding(False, f"{step}: when start() returns, {said}.")
        return Finding(True, "start() begins to gather, and returns at once.")

    # --- One unit ahead

    def asked(self, run: Run, name: str, ahead: bool) -> Finding:
        """Passes if, when each unit computes in this pass, its neighbour's weights have been asked for.

        ahead: whether that is looked at, or that nobody else's have.
        """
        count = len(self.values)
        for half in halves_of(run):
            if half.name != name:
                continue
            gathers = [call for call in half.calls if call.op.startswith("all_gather")]
            for place, (mark, _) in enumerate(compare.side_by_side(half.computes, range(count))):
                asked = sum(call.sequence < mark.sequence for call in gathers)
                wanted = min(place + 2, count)
                if asked < wanted if ahead else asked > wanted:
                    unit = place if name == "forward" else count - 1 - place
                    said = f"when unit {unit} of {count} computes, {compare.counted(asked, 'unit')} in all"
                    return Finding(False, f"{half}: {said} have been asked for weights; expected {wanted}.")
        which = "Its neighbour's" if ahead else "Nobody's but its neighbour's"
        return Finding(True, f"{which} weights have been asked for when a unit computes in {name}.")

    def waits(self, run: Run) -> Finding:
        """Passes if each unit computes before its neighbour's weights have arrived."""
        for half in halves_of(run):
            gathers = [call for call in half.calls if call.op.startswith("all_gather")]
            for place, mark in enumerate(half.computes[:-1]):
                if len(gathers) < place + 2 or mark.start >= gathers[place + 1].end:
                    said = f"unit {place} computes only when its neighbour's weights have arrived"
                    return Finding(False, f"{half}: {said}.")
        return Finding(True, "Each unit computes while its neighbour's weights are on their way.")


def _count(calls: Sequence[str], family: str) -> int:
    return sum(call.startswith(family) for call in calls)
