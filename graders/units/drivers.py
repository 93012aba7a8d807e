"""The drivers that any unit may use, run beside an answer: plain data in, plain data out."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData

Told = TypeVar("Told")

_KNOW = ("course_lib.runtime.processes.rank_environment", "course_lib.slurm.allocation")
"""Modules of the course that read what an answer is to read; None in their place is no module."""


def call(answer: AnswerFunction, *arguments: PlainData) -> PlainData:
    """What the answer returns for these arguments."""
    return answer(*arguments)


def outcome(answer: AnswerFunction, *arguments: PlainData) -> dict[str, PlainData]:
    """gave: what the answer returns; or raised: the classes of what it raises, by name, its own first, and
    said: its message.
    """
    try:
        return {"gave": answer(*arguments)}
    except Exception as error:
        return {"raised": [each.__name__ for each in type(error).__mro__], "said": str(error)}


CASE = "case"
"""The mark before each of several cases of a launch, and behind the last one."""


def between_marks(try_one: Callable[..., Told], cases: Sequence[Sequence[Any]]) -> list[Told]:
    """What becomes of each case, whose arguments these are, between two marks."""
    told = []
    for each in cases:
        mark(CASE)
        told.append(try_one(*each))
    mark(CASE)
    return told


@contextmanager
def alone() -> Iterator[None]:
    """Where PATH leads to no program and the course's readers cannot be imported."""
    with mock.patch.dict(sys.modules, dict.fromkeys(_KNOW)), mock.patch.dict(os.environ, {"PATH": ""}):
        yield
