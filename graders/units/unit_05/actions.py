"""Actions of a stage as they cross between a grader and its drivers, and orders of them to be judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from course_lib.training.pipeline.actions import (
    COMPUTING,
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Recompute,
)
from graders.grading.called import Called
from graders.grading.judging import feature
from graders.grading.kit import Answer, Rng
from graders.units.functions.stage import Arguments, OfFunction
from graders.units.unit_05 import drivers

KINDS = {kind.__name__: kind for kind in COMPUTING}


@dataclass(frozen=True, slots=True)
class Order:
    """What a stage does. halves, recomputed: which share of the backwards. direct: backwards that directly
    follow their forwards.
    """

    micro_batches: int = feature(6, "{} micro-batches")
    chunks: int = feature(1, lambda chunks: f"{chunks} chunks" * (chunks > 1))
    halves: float = feature(0.0, lambda share: "backwards in halves" * (share > 0))
    recomputed: float = feature(0.0, lambda share: "forwards that are recomputed" * (share > 0))
    direct: bool = feature(False, lambda direct: "backwards directly after their forwards" * direct)


def drawn_order(rng: Rng, order: Order) -> Arguments:
    """Actions in an order that could come about, with several micro-batches under way at once."""
    places = [(number, chunk) for number in range(order.micro_batches) for chunk in range(order.chunks)]
    left = [_of_one(rng, order, *place) for place in places]
    actions: list[Action] = []
    while left:
        chosen = rng.choice(left if order.direct else _not_direct(left, actions[-1:]))
        for _ in range(2 if order.direct and type(chosen[0]) is Forward else 1):
            actions.append(chosen.pop(0))
        left = [each for each in left if each]
    return [actions]


def _not_direct(left: list[list[Action]], before: list[Action]) -> list[list[Action]]:
    """Those of which no backward would directly follow its forward, now or in the end."""
    other = [each for each in left if before != [Forward(each[0].micro_batch, each[0].chunk)]] or left
    new = [each for each in other if type(each[0]) is Forward]
    return new if new and len(left) == 2 else other


def _of_one(rng: Rng, order: Order, number: int, chunk: int) -> list[Action]:
    """What is done for one micro-batch in one chunk."""
    where = number, chunk
    split = rng.integer(1, 100) <= 100 * order.halves
    again = [Recompute(*where)] if rng.integer(1, 100) <= 100 * order.recomputed else []
    back = [BackwardInput(*where), BackwardWeight(*where)] if split else [Backward(*where)]
    return [Forward(*where), *again, *back]


class OfActions(OfFunction[Order]):
    """An answer that is called with a list of actions."""

    def told(self, answer: Answer, inputs: list[Arguments], layouts: list[str]) -> Sequence[Called]:
        """What calls leave behind, with actions in it again."""
        plain = [[_all(argument, plain_of) for argument in given] for given in inputs]
        told = answer.call(drivers.of_actions, plain)
        return [
            replace(
                each,
                result=_all(each.result, action_of),
                arguments=[_all(left, action_of) for left in each.arguments],
            )
            for each in told
        ]

    def _call(self, given: Arguments) -> str:
        """Also where it is long: nobody could try it without."""
        return f"{self.name}({given[0]})"


def _all(value: Any, change: Callable[[Any], Any]) -> Any:
    return [change(item) for item in value] if isinstance(value, list) else value


def action_of(plain: Any) -> Any:
    """The action that `drivers.plain_action` made plain; anything else as it is."""
    if type(plain) is not list or [type(part) for part in plain] != [str, int, int]:
        return plain
    kind, micro_batch, chunk = plain
    return KINDS[kind](micro_batch, chunk) if kind in KINDS else plain


def plain_of(action: Action) -> list[Any]:
    """An action as `drivers.actions_from` reads it."""
    return [type(action).__name__, action.micro_batch, action.chunk]
