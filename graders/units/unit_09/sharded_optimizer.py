"""The grader of `ShardedOptimizer`."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor, nn

from graders.grading.cases import both, vary
from graders.grading.communication import in_words, steps_of
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Observed, PlainData, Rng, compare
from graders.units.in_one_launch import Trial, in_one_launch
from graders.units.one_by_one import Looks, look
from graders.units.optimizers import PlainSGD
from graders.units.unit_09.drivers import optimizers as drivers
from graders.units.unit_09.drivers.optimizers import GROUPS, LATER, OPTIONS, Stepped
from graders.units.unit_09.held import at_most_held, length_of, most_held

Run = Observed[Stepped]
FROZEN, MISSING = "a frozen parameter", "gradients that are None"


@dataclass(frozen=True, slots=True)
class Setting:
    """groups: whether there are two, whose options change after the first step. odd: what is not ordinary.
    alone: hundreds of numbers in a launch of their own, in which memory is counted.
    """

    ranks: int = feature(2, lambda ranks: compare.counted(ranks, "rank"))
    steps: int = feature(1, lambda steps: compare.counted(steps, "step"))
    groups: bool = feature(False, lambda groups: "two groups whose options change" if groups else "")
    odd: str = feature("", "{}")
    alone: bool = feature(False, lambda alone: "hundreds of numbers" if alone else "")

    @property
    def frozen(self) -> list[int]:
        return [1] if self.odd == FROZEN else []


@dataclass(frozen=True)
class Steps(Trial):
    """values: of the parameters. gradients[r]: of rank r, a list a step."""

    setting: Setting
    values: list[Tensor]
    gradients: list[list[list[Tensor | None]]]

    def given(self, rank: int) -> list[PlainData]:
        """See the base class."""
        return [self.values, self.setting.frozen, self.setting.groups, self.gradients[rank]]

    def found(self, run: Run) -> tuple[Finding, Looks]:
        """See the base class. What else may have changed is looked at where there are several steps."""
        findings = []
        for rank, (parameters, changed, _) in enumerate(run.results):
            for step, (seen, wanted) in enumerate(compare.side_by_side(parameters, self._expected)):
                for number, (got, want) in enumerate(compare.side_by_side(seen, wanted)):
                    what = f"parameter {number} of rank {rank} after step {step}"
                    findings.append(compare.close(got, want, what, 1e-4, 1e-5))
            if self.setting.steps > 1:
                findings.append(compare.equal(changed, [], f"what is changed on rank {rank}"))
        looks: Looks = {"calls": lambda: self._calls(run)}
        if self.setting.alone:
            looks["a part of the state"] = lambda: self._state(run)
        return compare.first_failure(findings), looks

    @cached_property
    def _groups(self) -> list[tuple[list[int], dict[str, float]]]:
        """The numbers of the trained parameters of each group, and its options."""
        given = GROUPS if self.setting.groups else [([*range(len(self.values))], {})]
        return [([n for n in own if n not in self.setting.frozen], dict(more)) for own, more in given]

    @cached_property
    def _expected(self) -> list[list[Tensor]]:
        """All parameters after each step, computed whole."""
        parameters = [nn.Parameter(each.clone()) for each in self.values]
        groups = [{"params": [parameters[n] for n in own], **more} for own, more in self._groups]
        optimizer = PlainSGD(groups, **OPTIONS)
        later = LATER if self.setting.groups else ()
        after = []
        for of_ranks in zip(*self.gradients, strict=True):
            for number, parameter in enumerate(parameters):
                own = [torch.zeros_like(parameter) if g[number] is None else g[number] for g in of_ranks]
                parameter.grad = torch.stack(own).mean(0)
            optimizer.step()
            after.append([parameter.detach().clone() for parameter in parameters])
            for group, options in zip(optimizer.param_groups, later, strict=False):
                group.update(options)
        return after

    @property
    def _parts(self) -> list[int]:
        """Of each group the length of a part, with padding."""
        numels = [sum(self.values[n].numel() for n in own) for own, _ in self._groups]
        return [length_of(numel, self.setting.ranks) for numel in numels]

    def _state(self, run: Run) -> Finding:
        """Passes if no rank's optimizer keeps more than a number for each of its part; and if after the last
        step each rank holds what it was given, and three parts.
        """
        numbers = max(numbers for *_, numbers in run.results)
        kept = compare.at_most(numbers, sum(self._parts), "Numbers that optimizer_class keeps on a rank")
        allowed = []
        for own in self.gradients:
            # The driver has copies of the parameters, also after steps but the last, and .grad. 64: counters.
            given = [*self.values * (1 + len(own)), *chain(*own), *own[-1]]
            held = sum(each.nbytes for each in given if each is not None)
            allowed.append(held + 12 * sum(self._parts) + 64)
        seen = [most_held(run, rank, "over") for rank in range(self.setting.ranks)]
        return compare.first_failure((kept, at_most_held(seen, allowed, "After the last step")))

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


@in_one_launch(
    base=Setting(),
    driver=drivers.optimizer_steps,
    name="ShardedOptimizer",
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "the first step",
            5,
            "Every rank gives its part of the mean gradient to optimizer_class, and then asks for the other "
            "parts of the parameters, to write them there, into the memory that they have: copy_, not .data.",
        ),
        Criterion(
            "every step",
            4,
            "The second step goes on from the first: the optimizer is made once, and keeps its own shard. "
            "step() leaves every .grad as it is; zero_grad() sets all of them to None.",
            vary=vary(steps=(2,)),
        ),
        Criterion(
            "groups and their options",
            2,
            "One shard a group, with its options, in dicts of your own. param_groups are those of the "
            "optimizer that you made: who changes an option there changes its steps.",
            needs=("every step",),
            vary=both(groups=True, steps=2),
        ),
        Criterion(
            "any ranks and parameters",
            1,
            "A gradient that is None is zeros; what needs none stays as it is.",
            vary=tuple({"steps": 2, **odd} for odd in vary(ranks=(1, 3), odd=(FROZEN, MISSING))),
        ),
        Criterion(
            "a part of the state",
            4,
            "Give optimizer_class one parameter a group, this rank's part of the flat tensor, and refer to "
            "no flat tensor when __init__ or step() is over. A view keeps the whole one alive: clone it. "
            "(ZeroRedundancyOptimizer deals out whole parameters: a rank with a large one has more to keep.)",
            needs=("every step",),
            vary=both(alone=True, steps=2, groups=True, ranks=4),
            how=look("a part of the state"),
        ),
        Criterion(
            "calls",
            2,
            "For each group one reduce-scatter of the gradients and one all-gather of the parameters: "
            "together the bytes of an all-reduce. (ZeroRedundancyOptimizer wants gradients that are averaged "
            "already, and broadcasts each parameter: half as much again.)",
            how=look("calls"),
        ),
    ),
    hints=(
        "Which gradients must a rank have to update its part, if Adam treats each number by itself?",
        "What can optimizer_class be given in place of the parameters? One nn.Parameter a group, with this "
        "rank's part of their numbers: flat(...).view(ranks, -1)[rank].clone().",
        "In step(): flat gradients, a reduce-scatter into the shard's .grad, a step, an all-gather of the "
        "shard, and unflat(...) to copy from.",
    ),
    possible=lambda case: not case.groups or case.alone or (case.ranks == 2 and not case.odd),
)
def sharded_optimizer(rng: Rng, case: Setting) -> Steps:
    """Parameters, and gradients of each rank and step."""
    shapes = [(20, 20), (7,), (10, 31)] if case.alone else [(6, 4), (8,), (4, 6)]
    gradients: list[list[list[Tensor | None]]] = [
        [[4 * rng.normal(*shape) for shape in shapes] for _ in range(case.steps)] for _ in range(case.ranks)
    ]
    if case.odd == MISSING:
        # One that no rank has, and one that all have but the first.
        for rank, own in enumerate(gradients):
            own[0][1] = None
            own[-1][0] = own[-1][0] if rank else None
    return Steps(case, [rng.normal(*shape) for shape in shapes], gradients)
