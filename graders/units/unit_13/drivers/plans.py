"""Drivers of unit 13's open task: what the answer plans, as plain data."""

from dataclasses import dataclass

from course_lib.planner import ParallelPlan
from graders.grading.answer import AnswerFunction, DriverReply
from graders.units.unit_13.plannable import Numbers


@dataclass(frozen=True, slots=True)
class PlanReply(DriverReply):
    """The fields of the plan that the answer returned. kind: the name of its type."""

    kind: str
    cuts: list[int]
    data: int
    tensor: int
    micro_batches: int
    split: dict[str, str]


def planned(answer: AnswerFunction, numbers: list[object], memory: float) -> PlanReply:
    """The answer's plan for a model and a cluster of these numbers, and devices with so many bytes."""
    given = Numbers(*numbers)  # type: ignore[arg-type]
    plan = answer(given.model(), given.cluster(), memory)
    if not isinstance(plan, ParallelPlan):
        return PlanReply(type(plan).__name__, [], 0, 0, 0, {})
    fields = list(plan.cuts), plan.data, plan.tensor, plan.micro_batches, dict(plan.split)
    return PlanReply(ParallelPlan.__name__, *fields)
