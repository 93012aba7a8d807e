"""Drivers of unit 12: groups along the axes of a mesh."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.drivers import outcome


@dataclass(frozen=True, slots=True)
class GroupsReply(DriverReply):
    """members: of each group that this rank got, its ranks in order; a word where it is no group. sums: over
    each group, of rank + 1. words: what each group is described with. made: groups that all ranks made. own:
    new groups that this rank is in.
    """

    members: list[PlainData]
    sums: list[PlainData]
    words: list[str]
    made: int
    own: int


def grouped(answer: AnswerFunction, shape: tuple[int, ...]) -> GroupsReply:
    """This rank's groups of a mesh that has all ranks, and a sum over each."""
    world = distributed_c10d._world
    before = world.group_count, len(world.pg_map)
    groups = answer(shape, dist.get_rank())
    # A group that only its own ranks make, with use_local_synchronization=True, is not counted.
    made, own = world.group_count - before[0], len(world.pg_map) - before[1]
    if type(groups) is not list:
        return GroupsReply([f"not a list, but a {type(groups).__name__}"], [], [], made, own)
    members: list[PlainData] = []
    sums, words = [], []
    for group in groups:
        if not isinstance(group, dist.ProcessGroup):
            members.append(f"no group, but a {type(group).__name__}")
            continue
        if group not in world.pg_map:
            members.append("a group of an earlier launch")
            continue
        members.append(dist.get_process_group_ranks(group))
        total = torch.tensor(dist.get_rank() + 1.0)
        dist.all_reduce(total, group=group)
        sums.append(total)
        words.append(group.group_desc)
    return GroupsReply(members, sums, words, made, own)


def refused(answer: AnswerFunction, shape: tuple[int, ...]) -> dict[str, PlainData]:
    """Whether the answer makes groups of this shape, or what it raises; and how many groups were made."""
    before = distributed_c10d._world.group_count
    told = outcome(lambda: len(answer(shape, dist.get_rank())))
    return {**told, "made": distributed_c10d._world.group_count - before}
