"""How layers are tried of which each rank has a part: forward and backward, beside the whole on one rank."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.exercise import Exercise
from graders.grading.judging import ByCases, Stage, by_cases, feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare, per_rank
from graders.units.one_by_one import Looks
from graders.units.passes import calls_by_pass
from graders.units.unit_12.cases import THREES
from graders.units.unit_12.drivers import space
from graders.units.unit_12.several import Call, together
from graders.units.unit_12.space_replies import PassesReply

PASSES = ("forward", "backward", "forward under no_grad")
KEPT = "arguments unchanged"
_NTH = ("first", "second", "third")
Given = list[list[Tensor]]
"""Of each rank of a group the tensors that it is given. Where ranks have copies, that is one tensor."""
ByPass = Sequence[Sequence[Sequence[Event]]]
"""Of each rank its calls in each pass."""


@dataclass(frozen=True, slots=True)
class Cut:
    """sizes: of each rank's part. only: which gradient alone is looked at; None: all. gaps: tensors stand
    transposed in memory. frozen: which need no gradient. groups: names of GROUPS. several: several calls
    in one graph.
    """

    sizes: tuple[int, ...] = feature((4, 4, 4), "parts of {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    only: int | None = feature(
        None, lambda only: "" if only is None else f"the {_NTH[only]} argument's gradient"
    )
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
    def gradients_too(self) -> bool:
        """Whether gradients are looked at, of all cases but the ordinary one."""
        return True

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

    def together(self, case: Features) -> Hashable:
        return None if case.several else sum(map(len, case.members))

    def run(self, answer: Answer, cases: Sequence[tuple[Features, Rng]]) -> Sequence[tuple[Finding, Looks]]:
        if cases[0][0].several:
            return [(self._several(answer, rng), {}) for _, rng in cases]
        of_groups = [[self.arguments(rng, case) for _ in case.members] for case, rng in cases]
        calls = [self._call(case, given) for (case, _), given in zip(cases, of_groups, strict=True)]
        ranks = len(calls[0].results)
        given = [
            [self._given(case, call, rank) for (case, _), call in zip(cases, calls, strict=True)]
            for rank in range(ranks)
        ]
        run = answer.launch(space.passes, per_rank(given), ranks=ranks)
        passes = [calls_by_pass(run, rank, PASSES * len(cases)) for rank in range(ranks)]
        found = []
        for number, ((case, _), call) in enumerate(zip(cases, calls, strict=True)):
            replies = compare.column(run.results, number, len(cases))
            of_case = [own[3 * number : 3 * number + 3] for own in passes]
            found.append(self._found(case, call, of_groups[number][0], replies, of_case))
        return found

    def _given(self, case: Features, call: Call, rank: int) -> list[Any]:
        """What a rank's driver is given."""
        tensors = [each[rank] for each in call.given]
        return [tensors, call.options, call.groups, case.gaps, list(case.frozen), case != self.base]

    def _found(
        self, case: Features, call: Call, given: Given, replies: Sequence[PassesReply], passes: ByPass
    ) -> tuple[Finding, Looks]:
        numbers = range(len(self.names)) if case.only is None else (case.only,)
        backward = case != self.base
        looked_at = [each for each in numbers if backward and case.gradients_too and each not in case.frozen]
        found = compare.first_failure(self._findings(case, call, replies, looked_at))
        kept = compare.first_failure(self._unchanged(case, call, replies))
        looks: Looks = {KEPT: lambda: kept}
        if backward and not case.groups:
            looks["calls"] = lambda: self._traffic(case, given, passes)
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
        self, case: Features, call: Call, replies: Sequence[PassesReply], looked_at: Sequence[int]
    ) -> Iterator[Finding]:
        for what, seen in (
            ("the result", [reply.result for reply in replies]),
            ("the result under no_grad", [reply.without for reply in replies]),
        ):
            yield compare.close_on_all_ranks(seen, call.results, what, case.near, case.near)
        for number in looked_at:
            seen = compare.column([reply.gradients for reply in replies], number, len(self.names))
            what = f"the gradient of {self.names[number]}"
            near = 10 * case.near
            yield compare.close_on_all_ranks(seen, call.gradients[number], what, near, near)

    def _unchanged(self, case: Features, call: Call, replies: Sequence[PassesReply]) -> Iterator[Finding]:
        """Of what was given, and of what arrived in backward."""
        learning = [number not in case.frozen for number in range(len(self.names))]
        for rank, reply in enumerate(replies):
            own = [each[rank] for each in call.given]
            yield Finding(
                True, f"what rank {rank} was given is as it was, and so is the gradient that arrived."
            )
            yield compare.equal(reply.given, own, f"what rank {rank} was given, afterwards")
            what = f"whether {', '.join(self.names)} on rank {rank} need a gradient afterwards"
            yield compare.equal(reply.learning, learning, what)
            said = f"the gradient that arrived on rank {rank} is another one afterwards."
            yield Finding(reply.arrived_kept, said)

    def _traffic(self, case: Features, given: Given, passes: ByPass) -> Finding:
        return compare.first_failure(
            self.calls(case, given, rank, label, calls)
            for rank in range(len(given))
            for label, calls in zip(PASSES, passes[rank], strict=True)
        )

    def _several(self, answer: Answer, rng: Rng) -> Finding:
        """The base case, the same with another x, and others, in one graph."""
        first = self.arguments(rng, self.base)
        again = [[rng.normal(*own[0].shape), *own[1:]] for own in first]
        made = [self._call(self.base, [given]) for given in (first, again)]
        made += [self._call(case, [self.arguments(rng, case) for _ in case.members]) for case in self.beside]
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

    Of the base case results are looked at; what is looked at alone, frozen, in groups, or called
    several times is not changed otherwise.
    """

    def possible(case: Features) -> bool:
        changed = [name for name in base.__dataclass_fields__ if getattr(case, name) != getattr(base, name)]
        return len(changed) < 2 or not {"only", "frozen", "groups", "several"} & set(changed)

    def register(results: Callable[[Features, Given], list[Tensor]]) -> Exercise:
        kept = any(row.name == KEPT for row in rubric)
        stage = BothPasses(base, names, arguments, results, calls, beside, kept)
        return by_cases(
            ByCases(base, stage, rubric, possible), minutes=minutes, difficulty=difficulty, hints=hints
        )(results)

    return register
