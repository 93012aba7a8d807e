"""The drivers of answers that make plans."""

from collections.abc import Sequence

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
    """As `in_turn`, of tasks: of each what its layers take, and what else. A plan comes as a list."""

    def planned(layers: list[list[PlainData]], rest: dict[str, PlainData]) -> PlainData:
        states = tuple(rest["states"])
        plan = answer(Task(**{**rest, "layers": tuple(Layer(*each) for each in layers), "states": states}))
        return [plan.stage, plan.micro_batches, [*map(str, plan.ways)]]

    return in_turn(planned, calls)
