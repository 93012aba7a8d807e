"""The drivers of answers that make plans."""

from collections.abc import Sequence
from typing import Any

from course_lib.training.memory_plan import Layer, Task
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn


def out_of_core(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """As `in_turn`, for plans in which a `Way` may stand in place of its word."""

    def planned(*arguments: PlainData) -> PlainData:
        plan = answer(*arguments)
        is_list = isinstance(plan, list)
        return [str(way) if isinstance(way, str) else way for way in plan] if is_list else plan

    return in_turn(planned, calls)


def memory(answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()) -> list[Called]:
    """As `in_turn`, of tasks as dictionaries. A plan comes as a list."""

    def planned(task: dict[str, PlainData]) -> PlainData:
        plan = answer(as_task(task))
        return [plan.stage, plan.micro_batches, [*map(str, plan.ways)]]

    return in_turn(planned, calls)


def as_task(told: dict[str, Any]) -> Task:
    """The task of which `dataclasses.asdict` has made this dictionary."""
    return Task(**{**told, "layers": tuple(Layer(**each) for each in told["layers"])})
