"""Cycles of a negotiation."""

from typing import Any

import torch.distributed as dist

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called


def cycles(
    answer: AnswerFunction,
    cases: list[list[PlainData]],
    options: list[dict[str, PlainData]],
    layouts: list[str],
    members: list[list[int] | None],
    meet: list[bool],
) -> list[Called]:
    """What each cycle of each case returns on this rank.

    cases: of each training the names that are requested before each cycle; a training has a table of its
    own. options, layouts, members, meet: see `graders.units.ranks.drivers.calls`.
    """
    told = []
    for (trainings,), together in zip(cases, meet, strict=True):
        if together:
            dist.barrier()
        returned: list[Any] = []
        for requests in trainings:
            table: dict[str, Any] = {}
            returned += [answer(list(names), table) for names in requests]
        told.append(Called(returned, None, []))
    return told
