"""Drivers of unit 12: groups along the axes of a mesh."""

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import distributed_c10d

from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.drivers import outcome


@dataclass(frozen=True, slots=True)
class GroupsReply(DriverReply):
    """members: of each group that this rank got, its ranks in order; a word where it is no group. words: what
    each is described with. made: how many groups all ranks made.
    """

    members: list[PlainData]
    words: list[str]
    made: int


def grouped(answer: AnswerFunction, shape: tuple[int, ...]) -> GroupsReply:
    """This rank's groups of a mesh that has all ranks."""
    before = distributed_c10d._world.group_count
    groups = answer(shape, dist.get_rank())
    made = distributed_c10d._world.group_count - before
    if type(groups) is not list or not all(isinstance(group, dist.ProcessGroup) for group in groups):
        return GroupsReply([f"no list of groups, but a {type(groups).__name__}"], [], made)
    members: list[PlainData] = list(map(dist.get_process_group_ranks, groups))
    return GroupsReply(members, [group.group_desc for group in groups], made)


def refused(answer: AnswerFunction, shape: tuple[int, ...]) -> dict[str, PlainData]:
    """Whether the answer makes groups of this shape, or what it raises; and how many groups were made."""
    before = distributed_c10d._world.group_count
    told = outcome(lambda: len(answer(shape, dist.get_rank())))
    return {**told, "made": distributed_c10d._world.group_count - before}
