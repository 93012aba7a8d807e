"""How layers are tried of which each rank has a part: forward and backward, beside the whole on one rank."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.exercise import Exercise
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare, per_rank
from graders.units.one_by_one import Looks
from graders.units.passes import calls_by_pass
from graders.units.unit_12.cut import Cut
from graders.units.unit_12.drivers import space
from graders.units.unit_12.drivers.space import PassesReply

PASSES = ("forward", "backward")
Given = list[list[Tensor]]
"""Of each rank of a group the tensors that it is given. Where ranks have copies, that is one tensor."""

Features = TypeVar("Features", bound=Cut)
Calls = Callable[[Features, Given, int, str, Sequence[Event]], Finding]


@dataclass(frozen=True, slots=True)
class Expected:
    """Of a rank: what it is given, the result of each call, and the gradient of each tensor."""

    given: list[Tensor]
    results: list[Tensor]
    gradients: list[Tensor]


@dataclass(frozen=True)
class BothPasses(Stage[Features]):
    """names: of the tensors that are given. arguments: of one group. results: of each of its ranks, computed
    on one rank. calls: what is found of a rank's calls in a pass.
    """

    base: Features
    names: tuple[str, ...]
    arguments: Callable[[Rng, Features], Given]
    results: Callable[[Features, Given], list[Tensor]]
    calls: Calls[Features]

    def together(self, case: Features) -> Hashable:
        return sum(map(len, case.members))

    def run(self, answer: Answer, cases: Sequence[tuple[Features, Rng]]) -> Sequence[tuple[Finding, Looks]]:
        drawn = [self._drawn(case, rng) for case, rng in cases]
        ranks = range(len(drawn[0]))
        given = [
            [self._given(case, own[rank]) for (case, _), own in zip(cases, drawn, strict=True)]
            for rank in ranks
        ]
        run = answer.launch(space.passes, per_rank(given), ranks=len(ranks))
        passes = [calls_by_pass(run, rank, PASSES * len(cases)) for rank in ranks]
        found = []
        for number, ((case, _), expected) in enumerate(zip(cases, drawn, strict=True)):
            replies = compare.column(run.results, number, len(cases))
            calls = [own[2 * number : 2 * number + 2] for own in passes]
            finding = compare.first_failure(self._findings(case, expected, replies))
            found.append((finding, self._looks(case, expected, calls)))
        return found

    def _drawn(self, case: Features, rng: Rng) -> list[Expected]:
        """Rank by rank."""
        found: dict[int, Expected] = {}
        for members in case.members:
            expected = self._expected(case, self.arguments(rng, case), members)
            found.update(zip(members, expected, strict=True))
        return [found[rank] for rank in sorted(found)]

    def _given(self, case: Features, own: Expected) -> list[Any]:
        """What a rank's driver is given."""
        groups = case.members if case.grouped else []
        return [own.given, case.options, groups, case.frozen, case.calls, case != self.base]

    def _expected(self, case: Features, given: Given, members: Sequence[int]) -> list[Expected]:
        """Of each rank of a group, computed in float64. The gradient of a copy is the sum of all."""
        leaves = {id(each): each.double().requires_grad_() for own in given for each in own}
        doubles = [[leaves[id(each)] for each in own] for own in given]
        results = [
            self.results(case, [space.of_call(number, own) for own in doubles])
            for number in range(case.calls)
        ]
        arriving = [
            space.arriving(each, rank) for call in results for each, rank in zip(call, members, strict=True)
        ]
        gradients = torch.autograd.grad([*chain(*results)], list(leaves.values()), arriving)
        of_leaf = {key: each.to(case.dtype) for key, each in zip(leaves, gradients, strict=True)}
        return [
            Expected(own, [each.detach().to(case.dtype) for each in of_calls], [of_leaf[id(x)] for x in own])
            for own, *of_calls in zip(given, *results, strict=True)
        ]

    def _findings(
        self, case: Features, expected: Sequence[Expected], replies: Sequence[PassesReply]
    ) -> Iterator[Finding]:
        for number in range(case.calls):
            seen = compare.column([reply.results for reply in replies], number, case.calls)
            right = [own.results[number] for own in expected]
            yield compare.close_on_all_ranks(seen, right, "the result", case.near, case.near)
        backward = case != self.base and case.gradients_too
        for number in range(len(self.names)) if case.only is None else (case.only,):
            if backward and number != case.frozen:
                seen = compare.column([reply.gradients for reply in replies], number, len(self.names))
                right = [own.gradients[number] for own in expected]
                what, near = f"the gradient of {self.names[number]}", 10 * case.near
                yield compare.close_on_all_ranks(seen, right, what, near, near)
        for rank, reply in enumerate(replies):
            yield compare.equal(reply.changed, [], f"what is changed on rank {rank}")

    def _looks(
        self, case: Features, expected: Sequence[Expected], passes: Sequence[Sequence[Sequence[Event]]]
    ) -> Looks:
        """What the calls of each rank and pass are, of cases with one call and no groups."""
        if case == self.base or case.grouped or case.calls > 1:
            return {}
        given = [own.given for own in expected]

        def calls() -> Finding:
            return compare.first_failure(
                self.calls(case, given, rank, label, calls)
                for rank, own in enumerate(passes)
                for label, calls in zip(PASSES, own, strict=True)
            )

        return {"calls": calls}


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
) -> Callable[[Callable[[Features, Given], list[Tensor]]], Exercise]:
    """Register an exercise of whose layer the function below computes what each rank has. See `BothPasses`.

    Of the base case results are looked at; what is looked at alone, frozen, in groups, or called twice is
    not changed otherwise.
    """

    def possible(case: Features) -> bool:
        changed = [name for name in base.__dataclass_fields__ if getattr(case, name) != getattr(base, name)]
        return len(changed) < 2 or not {"only", "frozen", "grouped", "calls"} & set(changed)

    def register(results: Callable[[Features, Given], list[Tensor]]) -> Exercise:
        stage = BothPasses(base, names, arguments, results, calls)
        judged = ByCases(base, stage, rubric, possible)
        return by_cases(judged, minutes=minutes, difficulty=difficulty, hints=hints)(results)

    return register
