"""Actions of a stage as they cross between a grader and its drivers, and orders of them to be judged."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from course_lib.training.pipeline.actions import (
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
from graders.units.unit_05.drivers import action_of, of_each, plain_action


@dataclass(frozen=True, slots=True)
class Order:
    """What a stage does. direct: whether backwards directly follow their forwards."""

    micro_batches: int = feature(6, "{} micro-batches")
    chunks: int = feature(1, lambda chunks: f"{chunks} chunks" * (chunks > 1))
    halves: bool = feature(False, lambda halves: "backwards in halves" * halves)
    recomputed: bool = feature(False, lambda recomputed: "forwards that are recomputed" * recomputed)
    direct: bool = feature(False, lambda direct: "backwards directly after their forwards" * direct)


def drawn_order(rng: Rng, order: Order) -> Arguments:
    """Forward and backward in turns, after two forwards or three; each weight half after the next forward."""
    ahead = 1 if order.direct else rng.integer(2, 3)
    timed: list[tuple[float, Action]] = []
    places = [(number, chunk) for number in range(order.micro_batches) for chunk in range(order.chunks)]
    for moment, where in enumerate(places):
        back = moment + ahead - 0.5
        timed.append((moment, Forward(*where)))
        timed += [(back, Recompute(*where))] if order.recomputed else []
        halves = [(back, BackwardInput(*where)), (back + 1, BackwardWeight(*where))]
        timed += halves if order.halves else [(back, Backward(*where))]
    return [[action for _, action in sorted(timed, key=lambda each: each[0])]]


class OfActions(OfFunction[Order]):
    """An answer that is called with a list of actions."""

    def told(self, answer: Answer, inputs: list[Arguments], layouts: list[str]) -> Sequence[Called]:
        """What calls leave behind, with actions in it again."""
        plain = [[of_each(argument, plain_action) for argument in given] for given in inputs]
        told = []
        for called in answer.call(drivers.of_actions, plain):
            left = [of_each(each, action_of) for each in called.arguments]
            told.append(replace(called, result=of_each(called.result, action_of), arguments=left))
        return told

    def _call(self, given: Arguments) -> str:
        """Also where it is long: nobody could try it without."""
        return f"{self.name}({given[0]})"
