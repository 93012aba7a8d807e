"""Drivers of the simulations: task graphs as plain data, in and out."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.planner.timelines import Task, Timeline, Watched
from graders.grading.answer import AnswerFunction, DriverReply, PlainData

Plain = tuple[int, float]
"""The device and the seconds of a task."""


@dataclass(frozen=True, slots=True)
class TimelineReply(DriverReply):
    """The fields of the timeline, and the arguments afterwards."""

    tasks: PlainData
    before: PlainData
    after: PlainData
    ready: PlainData
    end: PlainData
    queues: PlainData
    left: PlainData


@dataclass(frozen=True, slots=True)
class ChangeReply(DriverReply):
    """timeline: its fields after the changes. result: what the answer returned: a set of numbers sorted, else
    the name of its type beside it. read: which tasks were read.
    """

    timeline: TimelineReply
    result: PlainData
    read: list[int]


def simulate(
    answer: AnswerFunction, tasks: list[Plain], edges: list[tuple[int, int]], devices: int
) -> TimelineReply:
    """The timeline of these tasks."""
    given = [Task(*task) for task in tasks]
    timeline = answer(given, edges, devices)
    own = getattr(timeline, "tasks", None) is not given
    return _told(timeline, {"tasks": _plain(given), "edges": edges, "own": own})


def resimulate(
    answer: AnswerFunction, fields: Mapping[str, PlainData], changes: list[dict[str, Plain]]
) -> list[ChangeReply]:
    """What becomes of a timeline with these fields, change after change: the tasks by number, as texts."""
    timeline = Timeline(**{**fields, "tasks": [Task(*task) for task in fields["tasks"]]})
    replies = []
    for change in changes:
        timeline.tasks = watched = Watched(timeline.tasks)
        given = {int(number): Task(*task) for number, task in change.items()}
        result = answer(timeline, given)
        read = sorted(watched.read)
        if isinstance(result, set | frozenset) and all(type(number) is int for number in result):
            result = sorted(result)
        else:
            result = type(result).__name__, result
        left = {str(number): (task.device, task.seconds) for number, task in given.items()}
        replies.append(ChangeReply(_told(timeline, left), result, read))
    return replies


def _told(timeline: object, left: PlainData) -> TimelineReply:
    """The fields of a timeline, of those that it has."""
    names = ("before", "after", "ready", "end", "queues")
    parts = {name: copy.deepcopy(getattr(timeline, name, None)) for name in names}
    return TimelineReply(tasks=_plain(getattr(timeline, "tasks", None)), **parts, left=left)


def _plain(tasks: object) -> PlainData:
    return [(task.device, task.seconds) for task in tasks] if isinstance(tasks, list) else None
