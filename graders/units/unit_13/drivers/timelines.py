"""Drivers of the simulations: task graphs as plain data, in and out."""

from collections.abc import Mapping, Sequence
from typing import Any

from course_lib.planner.timelines import Task, Timeline, Watched
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn
from graders.units.ranks.drivers import copied

Plain = tuple[int, float]
"""The device and the seconds of a task."""


def simulate(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """The fields of the timelines of these tasks, edges and devices. own: whether the list of tasks is."""

    def told(tasks: list[Plain], edges: list[tuple[int, int]], devices: int) -> dict[str, PlainData]:
        given = [Task(*task) for task in tasks]
        timeline = answer(given, edges, devices)
        return {**_fields(timeline), "own": getattr(timeline, "tasks", None) is not given}

    return in_turn(told, calls, layouts)


def resimulate(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """What becomes of timelines with these fields, change after change: (task, device, seconds).

    Of each change the timeline afterwards, what the answer returned, a set in order, and which tasks it read.
    """

    def told(fields: Mapping[str, PlainData], changes: list[list[tuple[int, int, float]]]) -> list[PlainData]:
        timeline = Timeline(**{**fields, "tasks": [Task(*task) for task in fields["tasks"]]})
        return [_changed(answer, timeline, change) for change in changes]

    return in_turn(told, calls, layouts)


def _changed(
    answer: AnswerFunction, timeline: Timeline, change: list[tuple[int, int, float]]
) -> dict[str, PlainData]:
    timeline.tasks = watched = Watched(timeline.tasks)
    moved: Any = answer(timeline, {number: Task(device, seconds) for number, device, seconds in change})
    read = sorted(watched.read)
    numbers = isinstance(moved, set | frozenset) and all(type(number) is int for number in moved)
    told = sorted(moved) if numbers else [type(moved).__name__]
    return {**_fields(timeline), "moved": told, "read": read}


def _fields(timeline: object) -> dict[str, PlainData]:
    """The fields of a timeline, of those that it has; neighbours in order."""
    names = ("before", "after", "ready", "end", "queues")
    parts = {name: copied(getattr(timeline, name, None)) for name in names}
    for name in names[:2]:
        if isinstance(parts[name], list):
            parts[name] = [sorted(each) for each in parts[name]]
    tasks = getattr(timeline, "tasks", None)
    plain = [(task.device, task.seconds) for task in tasks] if isinstance(tasks, list) else []
    return {"tasks": plain, **parts}
