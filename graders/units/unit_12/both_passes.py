"""How layers are tried of which each rank has a part: forward and backward, beside the whole on one rank."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.exercise import Exercise
from graders.grading.judging import ByCases, Stage, feature, named_as
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare, exercise, per_rank
from graders.units.passes import calls_by_pass
from graders.units.unit_12.cases import THREES, Looks
from graders.units.unit_12.drivers import space
from graders.units.unit_12.several import Call, together
from graders.units.unit_12.space_replies import PassesReply

PASSES = ("forward", "backward", "forward under no_grad")
KEPT = "arguments unchanged"
Given = list[list[Tensor]]
"""Of each rank of a group the tensors that it is given. Where ranks have copies, that is one tensor."""


@dataclass(frozen=True, slots=True)
class Cut:
    """sizes: of each rank's part. only: which gradient alone is looked at; None: all. gaps: tensors stand
    transposed in memory. frozen: which need no gradient. groups: names of GROUPS. several: several calls
    in one graph.
    """

    sizes: tuple[int, ...] = feature((3, 5, 4), "parts of {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    only: int | None = None
    gaps: bool = feature(False, lambda gaps: "transposed in memory" if gaps else "")
    frozen: tuple[int, ...] = feature((), lambda frozen: "a tensor without gradient" if frozen else "")
    groups: str = feature("", {"": "", "threes": f"groups {THREES}", "alone": "groups of one"}.__getitem__)
    several: bool = feature(False, lambda several: "several calls in one graph" if several else "")

    @property
    def members(self) -> list[list[int]]:
        """The ranks of each group."""
        threes, alone = THREES, [[0], [1], [2]]
        return {"": [[*range(len(self.sizes))]], "threes": threes, "alone": alone}[self.groups]

    @property
    def options(self) -> dict[str, Any]:
        """What is given beside tensors and group."""
        return {}

    @property
    def near(self) -> float:
        """How far results may be off; gradients ten times as far."""
        return {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-3}[self.dtype]


Features = TypeVar("Features", bound=Cut)
Calls = Callable[[Features, Given, int, str, Sequence[Event]], Finding]


@dataclass(frozen=True)
class BothPasses(Stage[Features]):
    """names: of the tensors that are given. arguments: of one group. results: of each of its ranks, computed
    on one rank. calls: what is found of a rank's calls in a pass. beside: cases whose calls stand in one
    graph with the base case's. kept: whether another row looks at what becomes of arguments.
    """

    base: Features
    names: tuple[str, ...]
    arguments: Callable[[Rng, Features], Given]
    results: Callable[[Features, Given], list[Tensor]]
    calls: Calls[Features]
    beside: tuple[Features, ...]
    kept: bool

    def run(self, answer: Answer, cases: Sequence[tuple[Features, Rng]]) -> Sequence[tuple[Finding, Looks]]:
        return [
            (self._several(answer, rng), {}) if features.several else self._one(answer, features, rng)
            for features, rng in cases
        ]

    def _one(self, answer: Answer, case: Features, rng: Rng) -> tuple[Finding, Looks]:
        of_groups = [self.arguments(rng, case) for _ in case.members]
        call = self._call(case, of_groups)
        given = [list(own) for own in zip(*call.given, strict=True)]
        backward = case != self.base
        rest = call.options, call.groups, case.gaps, list(case.frozen), backward
        run = answer.launch(space.passes, per_rank(given), *rest, ranks=len(given))
        numbers = range(len(self.names)) if case.only is None else (case.only,)
        looked_at = [each for each in numbers if backward and each not in case.frozen]
        found = compare.first_failure(self._findings(case, call, run, looked_at))
        kept = compare.first_failure(self._unchanged(case, given, run))
        looks: Looks = {KEPT: lambda: kept}
        if backward and not case.groups:
            looks["calls"] = lambda: self._traffic(case, of_groups[0], run)
        return compare.first_failure([found] if self.kept else [found, kept]), looks

    def _call(self, case: Features, of_groups: list[Given]) -> Call:
        """What comes of it: tensors and their gradients for each argument and rank, and results."""
        found = {
            rank: each
            for members, given in zip(case.members, of_groups, strict=True)
            for rank, each in zip(members, self._expected(case, given, members), strict=True)
        }
        ranks = sorted(found)
        of_rank = {
            rank: own
            for members, given in zip(case.members, of_groups, strict=True)
            for rank, own in zip(members, given, strict=True)
        }
        given = [[of_rank[rank][number] for rank in ranks] for number in range(len(self.names))]
        gradients = [[found[rank][1][number] for rank in ranks] for number in range(len(self.names))]
        groups = case.members if case.groups else []
        return Call(given, case.options, [found[rank][0] for rank in ranks], gradients, groups)

    def _expected(
        self, case: Features, given: Given, members: Sequence[int]
    ) -> list[tuple[Tensor, list[Tensor]]]:
        """Of each rank the result and the gradients, computed in float64. A copy's is the sum of all."""
        leaves = {id(each): each.double().requires_grad_() for own in given for each in own}
        results = self.results(case, [[leaves[id(each)] for each in own] for own in given])
        arriving = [space.arriving(each, rank) for each, rank in zip(results, members, strict=True)]
        gradients = torch.autograd.grad(results, list(leaves.values()), arriving)
        of_leaf = dict(zip(leaves, gradients, strict=True))
        return [
            (result.detach().to(case.dtype), [of_leaf[id(each)].to(case.dtype) for each in own])
            for result, own in zip(results, given, strict=True)
        ]

    def _findings(
        self, case: Features, call: Call, run: Observed[PassesReply], looked_at: Sequence[int]
    ) -> Iterator[Finding]:
        for what, seen in (
            ("the result", [reply.result for reply in run.results]),
            ("the result under no_grad", [reply.without for reply in run.results]),
        ):
            yield compare.close_on_all_ranks(seen, call.results, what, case.near, case.near)
        for number in looked_at:
            seen = compare.column([reply.gradients for reply in run.results], number, len(self.names))
            what = f"the gradient of {self.names[number]}"
            near = 10 * case.near
            yield compare.close_on_all_ranks(seen, call.gradients[number], what, near, near)

    def _unchanged(self, case: Features, given: Given, run: Observed[PassesReply]) -> Iterator[Finding]:
        """Of what was given, and of what arrived in backward."""
        learning = [number not in case.frozen for number in range(len(self.names))]
        for rank, (reply, own) in enumerate(zip(run.results, given, strict=True)):
            yield compare.equal(reply.given, own, f"what rank {rank} was given, afterwards,")
            what = f"whether {', '.join(self.names)} on rank {rank} need a gradient afterwards"
            yield compare.equal(reply.learning, learning, what)
            said = f"the gradient that arrived on rank {rank} is another one afterwards."
            yield Finding(reply.arrived_kept, said)

    def _traffic(self, case: Features, given: Given, run: Observed[PassesReply]) -> Finding:
        return compare.first_failure(
            self.calls(case, given, rank, label, calls)
            for rank in range(len(given))
            for label, calls in zip(PASSES, calls_by_pass(run, rank, PASSES), strict=True)
        )

    def _several(self, answer: Answer, rng: Rng) -> Finding:
        """The base case, the same with another x, and others, in one graph."""
        first = self.arguments(rng, self.base)
        again = [[rng.normal(*own[0].shape), *own[1:]] for own in first]
        made = [self._call(self.base, [given]) for given in (first, again)]
        made += [
            self._call(case, [self.arguments(rng, case) for _ in case.members]) for case in self.beside
        ]
        return together(answer, made)


def both_passes(
    *,
    base: Features,
    names: tuple[str, ...],
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    arguments: Callable[[Rng, Features], Given],
    calls: Calls[Features],
    beside: tuple[Features, ...],
) -> Callable[[Callable[[Features, Given], list[Tensor]]], Exercise]:
    """Register an exercise of whose layer the function below computes what each rank has. See `BothPasses`.

    Of the base case results are looked at; what is looked at alone, frozen, or called
    several times is not changed otherwise.
    """

    def possible(case: Features) -> bool:
        changed = [name for name in base.__dataclass_fields__ if getattr(case, name) != getattr(base, name)]
        alone = len(changed) < 2 or not {"only", "frozen", "several"} & set(changed)
        return alone and (case.groups != "threes" or len(case.sizes) == 3)

    def register(results: Callable[[Features, Given], list[Tensor]]) -> Exercise:
        kept = any(row.name == KEPT for row in rubric)
        stage = BothPasses(base, names, arguments, results, calls, beside, kept)
        judge = named_as(results, ByCases(base, stage, rubric, possible))
        return exercise(rubric=rubric, minutes=minutes, difficulty=difficulty, hints=hints)(judge)

    return register
