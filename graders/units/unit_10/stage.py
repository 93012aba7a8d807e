"""How answers are tried that autograd passes through: all forwards of a launch, then all backwards, as those
of the layers of a model. What arrives at a result in backward is a multiple of it, on each rank another.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.exercise import Exercise
from graders.grading.expected import Expected, of_another
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kinds import Kind
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare, per_rank
from graders.units.passes import calls_by_pass
from graders.units.ranks.stage import Arguments
from graders.units.unit_10 import drivers
from graders.units.unit_10.cases import Setting
from graders.units.unit_10.drivers import Passed

Places = list[Arguments]
"""Positional arguments of each place of the group."""
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
        told, calls = _tried(answer, settings, inputs)
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


def _tried(
    answer: Answer, settings: Sequence[Setting], inputs: Sequence[Places]
) -> tuple[list[list[Passed]], list[list[Calls]]]:
    """Of each case what each place told, and what it called."""
    told: list[list[Passed]] = [[] for _ in settings]
    calls: list[list[Calls]] = [[] for _ in settings]
    launched = settings[0].launched
    given, which = [], []
    for rank in range(max(1, launched)):
        mine = [number for number, setting in enumerate(settings) if rank in setting.places]
        which.append(mine)
        given.append([_call(settings[number], inputs[number], rank) for number in mine])
    if not launched:
        replies, observed = [answer.call(drivers.passes, given[0], [])], None
    else:
        groups = list(dict.fromkeys(setting.places for setting in settings if setting.group))
        observed = answer.launch(
            drivers.passes, per_rank(given), [list(group) for group in groups], ranks=launched
        )
        replies = observed.results
    for rank, (reply, mine) in enumerate(zip(replies, which, strict=True)):
        by_case = _calls(observed, rank, len(mine)) if observed else [([], [])] * len(mine)
        for (passed, number), made in zip(compare.side_by_side(reply, mine), by_case, strict=True):
            told[number].append(passed)
            calls[number].append(made)
    return told, calls


def _call(setting: Setting, given: Places, rank: int) -> list[Any]:
    """What the driver needs for one call."""
    place = setting.places.index(rank)
    own = given[place]
    members = list(setting.places) if setting.group else None
    return [own, setting.learning(own), setting.layout, members, place]


def _calls(observed: Observed[Any], rank: int, count: int) -> list[Calls]:
    made = calls_by_pass(observed, rank, ["forward"] * count + ["backward"] * count)
    return [(made[number], made[-1 - number]) for number in range(count)]


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


# ---------------------------------------------------------------------- rows that ask how, of right cases


def kept(tried: Tried[Any]) -> Finding:
    """Passes if arguments are as they were."""
    found: Finding = tried.seen.kept
    return found


def gradients(tried: Tried[Any]) -> Finding:
    """Passes if arguments that need a gradient get the right one, and no others need one."""
    found: Finding = tried.seen.gradients
    return found


def calls(
    forward: Sequence[str], backward: Sequence[str], bytes_of: Callable[[Any, Places], list[tuple[int, int]]]
) -> Callable[[Tried[Any]], Finding | None]:
    """Passes if each rank makes these calls in forward and in backward, if there is one, and sends others no
    more bytes. A single rank may do without. bytes_of: how many may leave each place, forward and backward.
    """

    def made(tried: Tried[Any]) -> Finding | None:
        features, seen = tried.case.features, tried.seen
        rows_learn, *others_learn = features.learning(seen.given[0])
        if not rows_learn and any(others_learn):
            return None  # Whether the rows' gradients are sent then is left open.
        wanted = (forward, backward if rows_learn else ())
        for place, (both, limits) in enumerate(zip(seen.calls, bytes_of(features, seen.given), strict=True)):
            for label, events, names, limit in zip(
                ("forward", "backward"), both, wanted, limits, strict=True
            ):
                found = sorted(event.op for event in events)
                fewer = len(seen.calls) == 1 and not Counter(found) - Counter(names)
                if found != sorted(names) and not fewer:
                    text = f"in {label} place {place} calls {', '.join(found) or 'nothing'}"
                    return Finding(False, f"{text}; expected {', '.join(names) or 'nothing'}.")
                if (sent := sum(event.sent for event in events)) > limit:
                    text = f"in {label} place {place} sends {sent:,} bytes to others"
                    return Finding(False, f"{text}; what has to leave it is {limit:,} bytes.", Kind.TOO_MUCH)
        return Finding(
            True, "Every rank makes the calls that are needed, and sends what has to leave it, once."
        )

    return made
