"""The driver of answers that are called without ranks."""

from typing import Any

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.drivers import alone
from graders.units.ranks.drivers import call_once


def in_turn(answer: AnswerFunction, calls: list[list[PlainData]]) -> list[Called]:
    """Call the answer with each of these positional arguments, one after the other."""
    returned: list[Any] = []
    return [call_once(answer, arguments, {}, "contiguous", returned) for arguments in calls]


def in_turn_alone(answer: AnswerFunction, calls: list[list[PlainData]]) -> list[Called]:
    """As `in_turn`, where PATH leads to no program and the course's readers cannot be imported."""
    with alone():
        return in_turn(answer, calls)
