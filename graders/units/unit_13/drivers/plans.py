"""Drivers of unit 13's open task: what the answer plans, as plain data."""

from dataclasses import dataclass

from course_lib.planner import Model, ParallelPlan
from graders.grading.answer import AnswerFunction, DriverReply
from graders.units.unit_13.plannable import Numbers


@dataclass(frozen=True, slots=True)
class PlanReply(DriverReply):
    """The fields of the plan that the answer returned. kind: the name of its type. kept: whether the model's
    parameters are what they were.
    """

    kept: bool
    kind: str
    cuts: list[int]
    data: int
    tensor: int
    micro_batches: int
    split: dict[str, str]


def planned(answer: AnswerFunction, numbers: list[object], memory: float) -> PlanReply:
    """The answer's plan for a model and a cluster of these numbers, and devices with so many bytes."""
    given = Numbers(*numbers)  # type: ignore[arg-type]
    model = given.model()
    before = _parameters(model)
    plan = answer(model, given.cluster(), memory)
    kept = _parameters(model) == before
    if not isinstance(plan, ParallelPlan):
        return PlanReply(kept, type(plan).__name__, [], 0, 0, 0, {})
    fields = list(plan.cuts), plan.data, plan.tensor, plan.micro_batches, dict(plan.split)
    return PlanReply(kept, ParallelPlan.__name__, *fields)


def _parameters(model: Model) -> list[object]:
    """What a plan must not change: of each parameter its place, where it is, and whether it learns."""
    return [
        (number, name, id(each), each.device.type, each.requires_grad, each.grad is None)
        for number, piece in enumerate(model.pieces)
        for name, each in piece.named_parameters()
    ]
