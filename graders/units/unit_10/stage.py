"""How answers are tried that autograd passes through: all forwards of a launch, then all backwards, as those
of the layers of a model. What arrives at a result in backward is a multiple of it, on each rank another.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.exercise import Exercise
from graders.grading.expected import Expected, of_another
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.unit_10 import drivers
from graders.units.unit_10.cases import Setting
from graders.units.unit_10.drivers import Passed
from graders.units.unit_10.launches import Calls, Places, tried

Results = Callable[[Any, Places], list[Any]]
"""What each place must return, a tensor or a tuple of tensors, computed from its arguments by autograd."""


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
        told, calls = tried(answer, settings, inputs)
        judged = zip(settings, inputs, told, calls, strict=True)
        return [self._judged(*each) for each in judged]

    def _judged(
        self, setting: Setting, given: Places, told: list[Passed], calls: list[Calls]
    ) -> tuple[Finding, Seen]:
        results, gradients = self._wanted(setting, given)
        expected = [
            Expected(result, dict(zip(self.names, own, strict=False)), returned=None)
            for result, own in zip(results, given, strict=True)
        ]
        places = list(compare.side_by_side(told, expected))
        result = compare.first_failure(
            _result(setting, expected, called, place) for place, (called, _) in enumerate(places)
        )
        kept = compare.first_failure(
            wanted.kept_in(called, _where(setting, place), 0.0)
            for place, (called, wanted) in enumerate(places)
        )
        arrived = compare.first_failure(self._gradients(setting, told, gradients))
        return result, Seen(kept, arrived, calls, given)

    def _wanted(self, setting: Setting, given: Places) -> tuple[list[Any], list[list[Tensor | None]]]:
        """What each place returns, and the gradients of its arguments; computed in double precision."""
        leaves = [
            [_leaf(each, needs) for each, needs in zip(own, setting.learning(own), strict=True)]
            for own in given
        ]
        results = self.results(setting, leaves)
        firsts = [result[0] if isinstance(result, tuple) else result for result in results]
        arriving = [drivers.arriving(first, place) for place, first in enumerate(firsts)]
        learning = [leaf for own in leaves for leaf in own if isinstance(leaf, Tensor) and leaf.requires_grad]
        if learning:
            total = sum((first * each).sum() for first, each in zip(firsts, arriving, strict=True))
            found = torch.autograd.grad(total, learning, allow_unused=True, materialize_grads=True)
            for leaf, gradient in zip(learning, found, strict=True):
                leaf.grad = gradient
        return [setting.rounded(result) for result in results], [
            [
                setting.rounded(leaf.grad) if isinstance(leaf, Tensor) and leaf.requires_grad else None
                for leaf in own
            ]
            for own in leaves
        ]

    def _gradients(
        self, setting: Setting, told: list[Passed], wanted: list[list[Tensor | None]]
    ) -> Iterator[Finding]:
        """Of each place and argument: its gradient, and whether it needs one afterwards as before."""
        yield Finding(True, "all gradients are right.")
        for place, (called, own) in enumerate(zip(told, wanted, strict=True)):
            seen = zip(self.names, compare.side_by_side(called.gradients, own), called.needed, strict=False)
            for name, (gradient, expected), needed in seen:
                what = f"the gradient of {name} of {_where(setting, place)}"
                if expected is None:
                    said = f"{name} of {_where(setting, place)} needs a gradient only since the call."
                    yield Finding(not needed, said)
                else:
                    yield compare.close(gradient, expected, what, *setting.near)

    def typed(self, setting: Setting) -> str:
        written = self.written(setting)
        if setting.group or not written:
            return ""
        call = f"{self.name}({written})"
        return f"launch(lambda: {call}, ranks={setting.ranks})" if setting.launched else call


def _leaf(value: Any, needs: bool) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.double().requires_grad_(needs) if floating else value


def _where(setting: Setting, place: int) -> str:
    return f"place {place}" if setting.launched else "your function"


def _result(setting: Setting, expected: Sequence[Expected], called: Passed, place: int) -> Finding:
    """Passes if this place returned what it must; if it is what another must return, that is said."""
    what = f"what {_where(setting, place)} returned"
    finding = _returned(setting, expected[place].result, called.value, what)
    if finding.passed:
        return finding

    def matches(other: int) -> bool:
        return _returned(setting, expected[other].result, called.value, what).passed

    return of_another(finding, place, len(expected), matches) or finding


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
        return by_cases(
            ByCases(base, stage, rubric, possible), minutes=minutes, difficulty=difficulty, hints=hints
        )(results)

    return register
