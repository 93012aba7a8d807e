"""How answers are tried that autograd passes through: all forwards of a launch, then all backwards, as those
of the layers of a model. What arrives at a result in backward is a multiple of it, on each rank another.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.exercise import Exercise
from graders.grading.expected import Expected
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare, per_rank
from graders.units.passes import calls_by_pass
from graders.units.unit_10 import drivers
from graders.units.unit_10.cases import Places, Setting
from graders.units.unit_10.drivers import Passed

Results = Callable[[Any, Places], list[Any]]
"""What each place must return, a tensor or a tuple of tensors, computed from its arguments by autograd."""
Calls = tuple[list[Event], list[Event]]
"""What one rank called in forward, and in backward."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What rows that ask how may see of a case whose results are right.

    kept: about arguments. gradients: about those of arguments. calls: of each place. given: its arguments.
    """

    kept: Finding
    gradients: Finding
    calls: list[Calls]
    given: Places


@dataclass(frozen=True)
class BothWays(Stage[Setting]):
    """arguments: of each place; names: what these are called. written: them, as a student types them."""

    name: str
    names: tuple[str, ...]
    arguments: Callable[[Rng, Any], Places]
    results: Results
    written: Callable[[Any], str]

    def together(self, setting: Setting) -> Hashable:
        return setting.launched

    def run(self, answer: Answer, cases: Sequence[tuple[Setting, Rng]]) -> Sequence[tuple[Finding, Seen]]:
        settings = [setting for setting, _ in cases]
        inputs = [self.arguments(rng, setting) for setting, rng in cases]
        tried = [*zip(settings, inputs, strict=True)]
        if not settings[0].launched:
            calls = [_call(setting, given, 0) for setting, given in tried]
            told = answer.call(drivers.passes, calls, [])
            return [
                self._judged(*each, [passed], [([], [])])
                for passed, each in compare.side_by_side(told, tried)
            ]
        told_of, calls_of = self._launched(answer, tried)
        launched = zip(tried, told_of, calls_of, strict=True)
        return [self._judged(*each, told, calls) for each, told, calls in launched]

    def _launched(
        self, answer: Answer, tried: Sequence[tuple[Setting, Places]]
    ) -> tuple[list[list[Passed]], list[list[Calls]]]:
        """Of each case what each place told, and what it called."""
        ranks = range(tried[0][0].launched)
        own = [[n for n, (setting, _) in enumerate(tried) if rank in setting.places] for rank in ranks]
        given = [[_call(*tried[number], rank) for number in own[rank]] for rank in ranks]
        groups = {setting.places: None for setting, _ in tried if setting.group}
        run = answer.launch(drivers.passes, per_rank(given), [*map(list, groups)], ranks=len(ranks))
        told: list[list[Passed]] = [[] for _ in tried]
        calls: list[list[Calls]] = [[] for _ in tried]
        for rank, reply in enumerate(run.results):
            count = len(own[rank])
            made = calls_by_pass(run, rank, ["forward"] * count + ["backward"] * count)
            for place, (passed, number) in enumerate(compare.side_by_side(reply, own[rank])):
                told[number].append(passed)
                calls[number].append((made[place], made[-1 - place]))
        return told, calls

    def _judged(
        self, setting: Setting, given: Places, told: list[Passed], calls: list[Calls]
    ) -> tuple[Finding, Seen]:
        results, gradients = self._wanted(setting, given)
        found, kept = [], []
        for place, (called, result, own) in enumerate(zip(told, results, given, strict=True)):
            where = f"place {place}" if setting.launched else "your function"
            found.append(_returned(setting, result, called.value, f"what {where} returned"))
            expected = Expected(result, dict(zip(self.names, own, strict=False)), returned=None)
            kept.append(expected.kept_in(called, where, 0.0))
        arrived = compare.first_failure(self._gradients(setting, told, gradients))
        return compare.first_failure(found), Seen(compare.first_failure(kept), arrived, calls, given)

    def _wanted(self, setting: Setting, given: Places) -> tuple[list[Any], list[list[Tensor | None]]]:
        """What each place returns, and the gradients of its arguments; computed in double precision."""
        leaves = [
            [each.double().requires_grad_() if _floats(each) else each for each in own] for own in given
        ]
        results = self.results(setting, leaves)
        firsts = [result[0] if isinstance(result, tuple) else result for result in results]
        learning = [leaf for own in leaves for leaf in own if _floats(leaf)]
        if learning:
            total = sum((each * drivers.arriving(each, place)).sum() for place, each in enumerate(firsts))
            found = torch.autograd.grad(total, learning, allow_unused=True, materialize_grads=True)
            for leaf, gradient in zip(learning, found, strict=True):
                leaf.grad = gradient
        return [setting.rounded(result) for result in results], [
            [setting.rounded(leaf.grad) if _floats(leaf) else None for leaf in own] for own in leaves
        ]

    def _gradients(
        self, setting: Setting, told: list[Passed], wanted: list[list[Tensor | None]]
    ) -> Iterator[Finding]:
        yield Finding(True, "all gradients are right.")
        for place, (called, own) in enumerate(zip(told, wanted, strict=True)):
            seen = zip(self.names, compare.side_by_side(called.gradients, own), strict=False)
            for name, (gradient, expected) in seen:
                if expected is not None:
                    where = f" of place {place}" if setting.launched else ""
                    yield compare.close(gradient, expected, f"the gradient of {name}{where}", *setting.near)

    def typed(self, setting: Setting) -> str:
        written = self.written(setting)
        if setting.group or not written:
            return ""
        call = f"{self.name}({written})"
        return f"launch(lambda: {call}, ranks={setting.ranks})" if setting.launched else call


def _call(setting: Setting, given: Places, rank: int) -> list[Any]:
    """What the driver needs for one call."""
    place = setting.places.index(rank)
    return [given[place], list(setting.places) if setting.group else None, place]


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _returned(setting: Setting, wanted: Any, seen: Any, what: str) -> Finding:
    """A tensor is that tensor; of several they are its items, in a tuple or a list."""
    if not isinstance(wanted, tuple):
        return compare.close(seen, wanted, what, *setting.near)
    if type(seen) not in (tuple, list) or len(seen) != len(wanted):
        return Finding(False, f"{what} is {compare.shown(seen)}; expected {len(wanted)} tensors.")
    return compare.first_failure(
        compare.close(each, expected, f"item {number} of {what}", *setting.near)
        for number, (each, expected) in enumerate(zip(seen, wanted, strict=True))
    )


def both_ways(
    *,
    base: Setting,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    names: tuple[str, ...],
    arguments: Callable[[Rng, Any], Places],
    written: Callable[[Any], str] = lambda setting: "",
    possible: Callable[[Any], bool] = lambda setting: True,
) -> Callable[[Results], Exercise]:
    """Register an exercise whose every rank must return what the function below says. See `BothWays`."""

    def register(results: Results) -> Exercise:
        stage = BothWays(results.__name__, names, arguments, results, written)
        judged = ByCases(base, stage, rubric, possible)
        return by_cases(judged, minutes=minutes, difficulty=difficulty, hints=hints)(results)

    return register
