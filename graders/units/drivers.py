"""The drivers that any unit may use, run beside an answer: plain data in, plain data out."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from graders.grading.answer import AnswerFunction, PlainData

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


@contextmanager
def alone() -> Iterator[None]:
    """Where PATH leads to no program and the course's readers cannot be imported."""
    with mock.patch.dict(sys.modules, dict.fromkeys(_KNOW)), mock.patch.dict(os.environ, {"PATH": ""}):
        yield
