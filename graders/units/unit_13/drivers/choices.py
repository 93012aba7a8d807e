"""Drivers of choices: they run beside the student's code, which could read an expected value here."""

import copy
from dataclasses import dataclass
from typing import Any

from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class ChoiceReply(DriverReply):
    """gave: seconds and choices; or raised: the class of what was raised, by name. again: whether it was the
    same once more. unchanged: whether the arguments were as before.
    """

    gave: PlainData
    raised: str
    again: bool
    unchanged: bool


def choices(answer: AnswerFunction, problems: list[list[PlainData]]) -> list[ChoiceReply]:
    """What is chosen for each problem, given as the answer's arguments, and asked twice."""
    return [_chosen(answer, arguments) for arguments in problems]


def choices_of_large(answer: AnswerFunction, problems: list[list[PlainData]]) -> list[ChoiceReply]:
    """The same, asked once."""
    return [ChoiceReply(*_asked(answer, arguments), True, True) for arguments in problems]


def _chosen(answer: AnswerFunction, arguments: list[Any]) -> ChoiceReply:
    before = copy.deepcopy(arguments)
    first, raised = _asked(answer, arguments)
    again = _asked(answer, arguments) == (first, raised)
    return ChoiceReply(first, raised, again, arguments == before)


def _asked(answer: AnswerFunction, arguments: list[Any]) -> tuple[PlainData, str]:
    try:
        gave = answer(*arguments)
    except ValueError as error:
        return None, type(error).__name__
    return (list(gave) if isinstance(gave, tuple) else gave), ""
