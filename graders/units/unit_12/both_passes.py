"""How layers are tried of which each rank has a part: forward and backward, beside the whole on one rank."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.exercise import Exercise
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Finding, Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_12.drivers import space

Given = list[list[Tensor]]
"""Of each rank the tensors that it is given. Where ranks have copies, that is one tensor."""

_NTH = ("first", "second", "third")
_LEFT = dict.fromkeys(("tensors", "options", "frozen", "times", "backward"), ANYTHING)
"""What the driver's arguments hold afterwards: it looks itself."""


@dataclass(frozen=True, slots=True)
class Cut(Ranks):
    """only: which gradient alone is looked at; None: all. frozen: which tensor needs no gradient. times: how
    often the answer is called in one graph, each time with another x.
    """

    ranks: int = feature(3, "{} ranks")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    only: int | None = feature(
        None, lambda only: "" if only is None else f"the {_NTH[only]} argument's gradient"
    )
    frozen: int | None = feature(None, lambda frozen: "" if frozen is None else "a tensor without gradient")
    times: int = feature(1, lambda times: f"{times} calls in one graph" if times > 1 else "")

    @property
    def gradients_too(self) -> bool:
        """Whether gradients are looked at, of all cases but the ordinary one."""
        return True

    @property
    def tolerance(self) -> float:
        """How far results may be off; gradients ten times as far."""
        return {torch.float64: 1e-9, torch.float32: 1e-4}[self.dtype]


Features = TypeVar("Features", bound=Cut)
Calls = Callable[[Any, Given, int, str, Sequence[Event]], Finding]


def both_passes(
    *,
    base: Features,
    names: tuple[str, ...],
    arguments: Callable[[Rng, Features], Given],
    options: tuple[str, ...] = (),
    **rest: Any,
) -> Callable[[Callable[[Features, Given], list[Tensor]]], Exercise]:
    """Register an exercise of whose layer the function below computes what each rank has.

    names: of the tensors that are given. arguments: those of all ranks. options: features that are given by
    name where they are not None. rest: as for `on_ranks`. Of the base case results alone are looked at; what
    is looked at alone, frozen, in a group, or called twice is not changed otherwise.
    """

    def possible(case: Features) -> bool:
        changed = [name for name in base.__dataclass_fields__ if getattr(case, name) != getattr(base, name)]
        return len(changed) < 2 or not {"only", "frozen", "group", "times"} & set(changed)

    def drawn(rng: Rng, case: Features) -> list[Arguments]:
        named = {name: value for name in options if (value := getattr(case, name)) is not None}
        return [[own, named, case.frozen, case.times, case != base] for own in arguments(rng, case)]

    def register(results: Callable[[Features, Given], list[Tensor]]) -> Exercise:
        @wraps(results)
        def expected(case: Features, given: list[Arguments]) -> list[Expected]:
            backward = case != base and case.gradients_too
            looked_at = range(len(names)) if case.only is None else (case.only,)
            told = []
            whole = _whole(case, [own for own, *_ in given], results)
            for rank, of_calls, gradients in whole:
                right = [_close(each, f"the result on rank {rank}", case.tolerance) for each in of_calls]
                wanted: list[Any] = [ANYTHING] * len(names)
                for number in looked_at:
                    if backward and number != case.frozen:
                        what = f"the gradient of {names[number]} on rank {rank}"
                        wanted[number] = _close(gradients[number], what, 10 * case.tolerance)
                told.append(Expected([right, wanted, _none(f"what is changed on rank {rank}")], _LEFT))
            return told

        return on_ranks(
            base=base, arguments=drawn, calls=None, possible=possible, driver=space.passes, **rest
        )(expected)

    return register


def _close(right: Tensor, what: str, near: float) -> Checked:
    return Checked(lambda seen, _: compare.close(seen, right, what, near, near))


def _none(what: str) -> Checked:
    return Checked(lambda seen, _: compare.equal(seen, [], what))


def _whole(
    case: Features, given: Given, results: Callable[[Features, Given], list[Tensor]]
) -> Iterator[tuple[int, list[Tensor], list[Tensor]]]:
    """Of each rank its results and gradients, computed in float64; of a copy that is the sum of all."""
    leaves = {id(x): x.double().requires_grad_() for own in given for x in own}
    doubles = [[leaves[id(x)] for x in own] for own in given]
    calls = [results(case, [space.of_call(number, own) for own in doubles]) for number in range(case.times)]
    arriving = [
        space.arriving(each, rank) for call in calls for each, rank in zip(call, case.places, strict=True)
    ]
    gradients = torch.autograd.grad([*chain(*calls)], [*leaves.values()], arriving)
    of_leaf = dict(zip(leaves, gradients, strict=True))
    for rank, own, *of_calls in zip(case.places, given, *calls, strict=True):
        right = [each.detach().to(case.dtype) for each in of_calls]
        yield rank, right, [of_leaf[id(x)].to(case.dtype) for x in own]


def in_passes(calls: Calls) -> Callable[[Tried[Any]], Finding | None]:
    """How a row looks at what each rank calls in each pass, of cases with one call and without groups."""

    def looked_at(tried: Tried[Any]) -> Finding | None:
        case, seen = tried.case.features, tried.seen
        if not tried.case.changes or case.group or case.times > 1:
            return None
        given = [own for own, *_ in seen.given[0]]
        found = []
        for rank, (events, marks) in enumerate(zip(seen.by_rank, seen.marks, strict=True)):
            turn = max((mark.sequence for mark in marks if mark.op == "backward"), default=0)
            forward = [event for event in events if event.sequence < turn]
            backward = [event for event in events if event.sequence >= turn]
            found.append(calls(case, given, rank, "forward", forward))
            found.append(calls(case, given, rank, "backward", backward))
        return compare.first_failure(found)

    return looked_at
