"""Steps of an optimizer of which each rank has a part: what they are given, and what is found of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from graders.grading.communication import in_words, steps_of
from graders.grading.judging import feature
from graders.grading.kit import Finding, Kind, Observed, PlainData, Rng, compare
from graders.units.in_one_launch import Trial
from graders.units.one_by_one import Looks
from graders.units.optimizers import PlainSGD
from graders.units.unit_09.drivers.optimizers import OptimizerReply
from graders.units.unit_09.held import at_most_held, held_at, length_of

Run = Observed[OptimizerReply]
FROZEN, MISSING = "a frozen parameter", "gradients that are None"
OPTIONS = {"lr": 0.1, "decay": 0.1}


@dataclass(frozen=True, slots=True)
class Setting:
    """groups: whether there are two, with options of their own, which change after the first step. odd: what
    is not ordinary. deep: hundreds of numbers, of which is counted how many are held.
    """

    ranks: int = feature(2, lambda ranks: compare.counted(ranks, "rank"))
    steps: int = feature(1, lambda steps: compare.counted(steps, "step"))
    groups: bool = feature(False, lambda groups: "two groups whose options change" if groups else "")
    odd: str = feature("", "{}")
    deep: bool = feature(False, lambda deep: "hundreds of numbers" if deep else "")

    @property
    def alone(self) -> bool:
        """Whether it has a launch of its own, in which memory is counted."""
        return self.deep

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [(20, 20), (7,), (10, 31)] if self.deep else [(6, 4), (8,), (4, 6)]


@dataclass(frozen=True)
class Steps(Trial):
    """values: of the parameters. groups: the numbers and options of each; none: no groups are given.

    gradients[r]: of rank r, a list a step. later: options of each group from the second step on.
    """

    setting: Setting
    values: list[Tensor]
    groups: list[tuple[list[int], dict[str, float]]]
    gradients: list[list[list[Tensor | None]]]
    later: list[dict[str, float]]

    @classmethod
    def draw(cls, rng: Rng, case: Setting) -> "Steps":
        values = [rng.normal(*shape) for shape in case.shapes]
        gradients: list[list[list[Tensor | None]]] = [
            [[4 * rng.normal(*shape) for shape in case.shapes] for _ in range(case.steps)]
            for _ in range(case.ranks)
        ]
        if case.odd == MISSING:
            # One that no rank has, and one that all have but the first.
            for rank, own in enumerate(gradients):
                own[0][1] = None
                own[-1][0] = own[-1][0] if rank else None
        if not case.groups:
            return cls(case, values, [], gradients, [])
        later = [{"lr": rng.integer(3, 6) / 20}, {"momentum": 0.2, "decay": 0.4}]
        return cls(case, values, [([0], {"lr": 0.3}), ([2, 1], {"momentum": 0.7})], gradients, later)

    @property
    def frozen(self) -> list[int]:
        return [1] if self.setting.odd == FROZEN else []

    def given(self, rank: int) -> list[PlainData]:
        """See the base class."""
        return [self.values, self.frozen, self.groups, OPTIONS, self.gradients[rank], self.later]

    def found(self, run: Run) -> tuple[Finding, Looks]:
        """See the base class. What else may have changed is looked at where there are several steps."""
        findings = [*self._stepped(run)]
        for rank, reply in enumerate(run.results if self.setting.steps > 1 else []):
            findings.append(compare.equal(reply.changed, [], f"what is changed on rank {rank}"))
        looks: Looks = {"a part of the state": lambda: self._state(run), "calls": lambda: self._calls(run)}
        return compare.first_failure(findings), looks

    def _stepped(self, run: Run) -> Iterator[Finding]:
        """Whether all ranks have the expected parameters after each step."""
        for rank, reply in enumerate(run.results):
            for step, (seen, wanted) in enumerate(compare.side_by_side(reply.parameters, self._expected)):
                for number, (got, want) in enumerate(compare.side_by_side(seen, wanted)):
                    what = f"parameter {number} of rank {rank} after step {step}"
                    yield compare.close(got, want, what, 1e-4, 1e-5)

    @cached_property
    def _expected(self) -> list[list[Tensor]]:
        """All parameters after each step, computed whole."""
        parameters = [nn.Parameter(each.clone()) for each in self.values]
        described = [
            {"params": [parameters[n] for n in own if n not in self.frozen], **more}
            for own, more in self.groups or [([*range(len(parameters))], {})]
        ]
        optimizer = PlainSGD(described, **OPTIONS)
        after = []
        for of_ranks in zip(*self.gradients, strict=True):
            for number, parameter in enumerate(parameters):
                own = [torch.zeros_like(parameter) if g[number] is None else g[number] for g in of_ranks]
                parameter.grad = torch.stack(own).mean(0)
            optimizer.step()
            after.append([parameter.detach().clone() for parameter in parameters])
            for group, options in zip(optimizer.param_groups, self.later, strict=False):
                group.update(options)
        return after

    @property
    def _parts(self) -> list[int]:
        """Of each group the length of a part, with padding."""
        groups = [own for own, _ in self.groups] or [[*range(len(self.values))]]
        numels = [sum(self.values[n].numel() for n in own if n not in self.frozen) for own in groups]
        return [length_of(numel, self.setting.ranks) for numel in numels]

    def _state(self, run: Run) -> Finding:
        """Passes if no rank's optimizer keeps more than a number for each of its part; and, of a deep model,
        if after the last step each rank holds what it was given, and three parts.
        """
        most = max(reply.numbers for reply in run.results)
        what = "Numbers that optimizer_class keeps on a rank"
        found = compare.at_most(most, sum(self._parts), what)
        if not self.setting.deep or not found.passed:
            return found
        allowed = []
        for own in self.gradients:
            arguments = [each for step in own for each in step]
            # The driver has a copy of the parameters after each step but the last.
            given = [*self.values, *self.values, *arguments, *own[-1], *self.values * (len(own) - 1)]
            # A few bytes for counters, of steps or of lengths.
            allowed.append(
                sum(each.nbytes for each in given if each is not None) + 12 * sum(self._parts) + 64
            )
        seen = [held_at(run, rank, "over") for rank in range(self.setting.ranks)]
        return at_most_held(seen, allowed, "After the last step")

    def _calls(self, run: Run) -> Finding:
        """Passes if each step has its two calls a group, and sends no more than they do."""
        wanted = sorted(["all_gather", "reduce_scatter"] * len(self._parts))
        limit = 8 * (self.setting.ranks - 1) * sum(self._parts)
        for step in steps_of(run, "step done"):
            made, sent = sorted(call.op for call in step.calls), sum(call.sent for call in step.calls)
            if len(made) != len(wanted) or not all(map(str.startswith, made, wanted)) or sent > limit:
                said = f"{step} calls {in_words(made)} and sends {sent:,} bytes"
                told = f"{said}; expected {in_words(wanted)} and {limit:,} bytes."
                return Finding(False, told, Kind.TOO_MUCH if len(made) > len(wanted) else Kind.OTHER)
        return Finding(True, "Every step makes one reduce-scatter and one all-gather for each group.")
