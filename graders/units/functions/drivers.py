"""The driver of answers that are called without ranks."""

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.drivers import alone
from graders.units.ranks.drivers import call_once


def in_turn(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """Call the answer with each of these positional arguments, one after the other.

    layouts: of all tensors of a call, see `graders.units.ranks.drivers.LAYOUTS`; "contiguous" where none is
    named.
    """
    returned: list[Any] = []
    return [
        call_once(answer, arguments, {}, layout, returned)
        for arguments, layout in zip(calls, chain(layouts, repeat("contiguous")), strict=False)
    ]


def in_turn_alone(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """As `in_turn`, where PATH leads to no program and the course's readers cannot be imported."""
    with alone():
        return in_turn(answer, calls, layouts)
