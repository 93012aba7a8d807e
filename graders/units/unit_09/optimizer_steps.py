"""Steps of an optimizer of which each rank has a part: what they are given, and what is found of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from graders.grading.communication import in_words, steps_of
from graders.grading.judging import feature
from graders.grading.kit import Finding, Kind, Observed, PlainData, compare
from graders.units.in_one_launch import Trial
from graders.units.one_by_one import Looks
from graders.units.optimizers import PlainSGD
from graders.units.unit_09.held import at_most_held, held_at, length_of
from graders.units.unit_09.replies import OptimizerReply

Run = Observed[OptimizerReply]
OWN, CHANGED = "two groups with options of their own", "two groups whose options change"
FROZEN, MISSING, DTYPES = "a frozen parameter", "gradients that are None", "groups of two dtypes"
GAPS, FEW = "tensors transposed in memory", "more ranks than numbers"
TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-9, 1e-10)}
"""rtol and atol: who goes through single precision on the way loses digits of double."""


@dataclass(frozen=True, slots=True)
class Setting:
    """odd: what is not ordinary. deep: hundreds of numbers, of which is counted how many are held."""

    ranks: int = feature(2, lambda ranks: compare.counted(ranks, "rank"))
    steps: int = feature(1, lambda steps: compare.counted(steps, "step"))
    groups: str = feature("", "{}")
    odd: str = feature("", "{}")
    deep: bool = feature(False, lambda deep: "hundreds of numbers" if deep else "")

    @property
    def alone(self) -> bool:
        """Whether it has a launch of its own, in which memory is counted."""
        return self.deep

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        if self.odd == FEW:
            return [(2,), (1,)]
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

    @property
    def frozen(self) -> list[int]:
        return [1] if self.setting.odd == FROZEN else []

    @property
    def options(self) -> dict[str, float]:
        return {"lr": 0.1, "decay": 0.1}

    def given(self, rank: int) -> list[PlainData]:
        """See the base class."""
        gaps = self.setting.odd == GAPS
        return [self.values, self.frozen, self.groups, self.options, self.gradients[rank], self.later, gaps]

    def found(self, run: Run) -> tuple[Finding, Looks]:
        """See the base class. What else may have changed is looked at where there are several steps."""
        findings = [*self._stepped(run)]
        if self.setting != Setting():
            findings += _as_they_were(run)
        looks: Looks = {
            "zero_grad": lambda: _cleared(run),
            "a part of the state": lambda: self._state(run),
            "calls": lambda: self._calls(run),
        }
        if self.setting.deep:
            looks["nothing else is kept"] = lambda: self._kept(run)
        return compare.first_failure(findings), looks

    def _stepped(self, run: Run) -> Iterator[Finding]:
        """Whether all ranks have the expected parameters after each step."""
        for rank, reply in enumerate(run.results):
            for step, (seen, wanted) in enumerate(compare.side_by_side(reply.parameters, self._expected)):
                for number, (got, want) in enumerate(compare.side_by_side(seen, wanted)):
                    what = f"parameter {number} of rank {rank} after step {step}"
                    yield compare.close(got, want, what, *TOLERANCES[want.dtype])

    @cached_property
    def _expected(self) -> list[list[Tensor]]:
        """All parameters after each step, computed whole."""
        parameters = [nn.Parameter(each.clone()) for each in self.values]
        described = [
            {"params": [parameters[n] for n in own if n not in self.frozen], **more}
            for own, more in self.groups or [([*range(len(parameters))], {})]
        ]
        optimizer = PlainSGD(described, **self.options)
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
    def _parts(self) -> list[tuple[int, int]]:
        """Of each group the length of a part, with padding, and the bytes of a number."""
        parts = []
        for own, _ in self.groups or [([*range(len(self.values))], {})]:
            numel = sum(self.values[number].numel() for number in own if number not in self.frozen)
            parts.append((length_of(numel, self.setting.ranks), self.values[own[0]].element_size()))
        return parts

    @property
    def _bytes(self) -> int:
        """Of a part of every group together."""
        return sum(length * size for length, size in self._parts)

    def _state(self, run: Run) -> Finding:
        """Passes if no rank's optimizer keeps more than a number for each of its part."""
        most, limit = (
            max(reply.numbers for reply in run.results),
            sum(length for length, _ in self._parts),
        )
        return compare.at_most(most, limit, "Numbers that optimizer_class keeps on a rank")

    def _kept(self, run: Run) -> Finding:
        """Passes if after the last step each rank holds what it was given, and three parts."""
        allowed = []
        for own in self.gradients:
            arguments = [each for step in own for each in step]
            # The driver has a copy of the parameters after each step but the last.
            given = [*self.values, *self.values, *arguments, *own[-1], *self.values * (len(own) - 1)]
            # A few bytes for counters, of steps or of lengths.
            allowed.append(sum(each.nbytes for each in given if each is not None) + 3 * self._bytes + 64)
        seen = [held_at(run, rank, "over") for rank in range(self.setting.ranks)]
        return at_most_held(seen, allowed, "After the last step")

    def _calls(self, run: Run) -> Finding:
        """Passes if each step has its two calls a group, and sends no more than they do."""
        ranks = self.setting.ranks
        wanted = sorted(["all_gather", "reduce_scatter"] * len(self._parts))
        limit = 2 * (ranks - 1) * self._bytes
        for step in steps_of(run, "step done"):
            made, sent = sorted(call.op for call in step.calls), sum(call.sent for call in step.calls)
            if len(made) != len(wanted) or not all(map(str.startswith, made, wanted)) or sent > limit:
                said = f"{step} calls {in_words(made)} and sends {sent:,} bytes"
                told = f"{said}; expected {in_words(wanted)} and {limit:,} bytes."
                return Finding(False, told, Kind.TOO_MUCH if len(made) > len(wanted) else Kind.OTHER)
        if any(len(run.calls(rank)) != self.setting.steps * len(wanted) for rank in range(ranks)):
            return Finding(False, "There are calls outside of step(), where none is needed.")
        return Finding(True, "Every step makes one reduce-scatter and one all-gather for each group.")


def _as_they_were(run: Run) -> Iterator[Finding]:
    """Whether gradients, what needs them, and the dicts of the groups are as they were."""
    for rank, reply in enumerate(run.results):
        said = f"step() has changed a .grad on rank {rank}; expected every one as it was, until zero_grad()."
        yield Finding(all(reply.left), said)
        said = f"rank {rank}: a dict of the groups, or what needs gradients, is not as it was."
        yield Finding(not reply.changed, said)


def _cleared(run: Run) -> Finding:
    cleared = all(reply.cleared for reply in run.results)
    return Finding(cleared, f"After zero_grad() {'all' if cleared else 'not all'} gradients are None.")
