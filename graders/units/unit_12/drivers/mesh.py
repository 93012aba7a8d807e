"""Drivers of unit 12: groups along the axes of a mesh."""

import re
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.drivers import outcome
from graders.units.ranks import drivers


def grouped(answer: AnswerFunction, *given: Any) -> list[Called]:
    """The groups of each mesh, with the arguments of `graders.units.ranks.drivers.calls`."""
    return drivers.calls(partial(_grouped, answer), *given)


def _grouped(answer: AnswerFunction, shape: tuple[int, ...]) -> dict[str, PlainData]:
    """The ranks of each of this rank's groups, whether one is of a DeviceMesh, and how many were made."""
    before = distributed_c10d._world.group_count
    groups = answer(shape, dist.get_rank())
    made = distributed_c10d._world.group_count - before
    if type(groups) is not list or not all(isinstance(group, dist.ProcessGroup) for group in groups):
        return {
            "groups": f"no list of groups, but a {type(groups).__name__}",
            "of a mesh": False,
            "made": made,
        }
    of_mesh = any(re.fullmatch(r"mesh_(dim_\d+|[a-z]+)", group.group_desc) for group in groups)
    members = list(map(dist.get_process_group_ranks, groups))
    return {"groups": members, "of a mesh": of_mesh, "made": made}


def refused(answer: AnswerFunction, shape: tuple[int, ...]) -> dict[str, PlainData]:
    """Whether the answer makes groups of this shape, or what it raises; and how many groups were made."""
    before = distributed_c10d._world.group_count
    told = outcome(lambda: len(answer(shape, dist.get_rank())))
    return {**told, "made": distributed_c10d._world.group_count - before}
