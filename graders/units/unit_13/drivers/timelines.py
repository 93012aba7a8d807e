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
        if _plain(given) != tasks:
            tasks[:] = _plain(given)
        return {**_fields(timeline), "own": getattr(timeline, "tasks", None) is not given}

    return in_turn(told, calls, layouts)


def resimulate(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """What becomes of timelines with these fields, change after change: the tasks by number, as texts.

    Of each change the timeline afterwards, what the answer returned (a set of numbers sorted, else the name
    of its type beside it), and the change itself afterwards.
    """

    def told(fields: Mapping[str, PlainData], changes: list[dict[str, Plain]]) -> list[PlainData]:
        timeline = _timeline(fields)
        return [_changed(answer, timeline, change) for change in changes]

    return in_turn(told, calls, layouts)


def tasks_read(answer: AnswerFunction, calls: list[list[PlainData]]) -> list[list[list[int]]]:
    """Which tasks are read by calls as those of `resimulate`, of each change."""
    told = []
    for fields, changes in calls:
        timeline = _timeline(fields)
        told.append([_watched(answer, timeline, _given(change))[1] for change in changes])
    return told


def _timeline(fields: Mapping[str, PlainData]) -> Timeline:
    return Timeline(**{**fields, "tasks": [Task(*task) for task in fields["tasks"]]})


def _given(change: Mapping[str, Plain]) -> dict[int, Task]:
    return {int(number): Task(*task) for number, task in change.items()}


def _watched(answer: AnswerFunction, timeline: Timeline, given: dict[int, Task]) -> tuple[Any, list[int]]:
    """What the answer returns, and the tasks that it reads."""
    timeline.tasks = watched = Watched(timeline.tasks)
    moved = answer(timeline, given)
    return moved, sorted(watched.read)


def _changed(answer: AnswerFunction, timeline: Timeline, change: Mapping[str, Plain]) -> dict[str, PlainData]:
    given = _given(change)
    moved, _ = _watched(answer, timeline, given)
    numbers = isinstance(moved, set | frozenset) and all(type(number) is int for number in moved)
    left = {str(number): (task.device, task.seconds) for number, task in given.items()}
    told = sorted(moved) if numbers else [type(moved).__name__]
    return {**_fields(timeline), "moved": told, "left": left}


def _fields(timeline: object) -> dict[str, PlainData]:
    """The fields of a timeline, of those that it has; neighbours in order."""
    names = ("before", "after", "ready", "end", "queues")
    parts = {name: copied(getattr(timeline, name, None)) for name in names}
    for name in names[:2]:
        if isinstance(parts[name], list):
            parts[name] = [_in_order(each) for each in parts[name]]
    return {"tasks": _plain(getattr(timeline, "tasks", None)), **parts}


def _in_order(numbers: PlainData) -> PlainData:
    ordered = isinstance(numbers, list) and all(type(number) is int for number in numbers)
    return sorted(numbers) if ordered else numbers


def _plain(tasks: object) -> list[Plain]:
    return [(task.device, task.seconds) for task in tasks] if isinstance(tasks, list) else []
