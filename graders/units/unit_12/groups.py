"""The grader of `groups`."""

import re
from dataclasses import dataclass
from math import prod

import torch

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_12.drivers import mesh as drivers
from graders.units.unit_12.drivers.mesh import GroupsReply
from graders.units.unit_12.mesh_coordinates import raises_value_error

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """shape: of a mesh that has all ranks."""

    shape: Shape = feature((2, 3, 2), "a mesh of shape {}")


def lines(shape: Shape, rank: int) -> list[list[int]]:
    """The ranks of this rank's group along each axis."""
    numbers = torch.arange(prod(shape)).view(shape)
    rows = (numbers.movedim(axis, -1).reshape(-1, size).tolist() for axis, size in enumerate(shape))
    return [next(line for line in of_axis if rank in line) for of_axis in rows]


def refused(answer: Answer, rng: Rng) -> Finding:
    """Passes if shapes of more or fewer ranks than there are raise ValueError and make no group."""
    found = []
    for shape, ranks in (((2, 2), 5), ((2, 3), 5), ((5, 2), 9), ((), 2)):
        run = answer.launch(drivers.refused, shape, ranks=ranks)
        for rank, told in enumerate(run.results):
            what = f"With shape {shape} on {ranks} ranks, rank {rank} makes {told.get('made')} groups and"
            finding = raises_value_error(told, what)
            early = f"{finding.seen[:-1]} before any group is made."
            found.append(finding if told.get("made") == 0 else Finding(False, early))
    return compare.first_failure(found)


@one_by_one(
    base=Box(),
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "own groups",
            4,
            "One group an axis, in the order of the axes. Its ranks have all other coordinates in common. "
            "dist.new_group is called by every rank, for every group, in the same order.",
            vary=vary(shape=((3, 2, 2),)),
        ),
        Criterion(
            "they work",
            1,
            "A group of ranks that dist.new_group made, on which a collective can run.",
            how=look("they work"),
        ),
        Criterion(
            "any mesh",
            1,
            "Axes of size 1 have groups of one rank; there may be one axis, or four.",
            vary=vary(shape=((1,), (3,), (1, 4), (3, 1, 2), (2, 1, 3, 1))),
        ),
        Criterion(
            "each group once",
            1,
            "Make every line of the mesh once, not once for each of its ranks.",
            how=look("each group once"),
        ),
        Criterion(
            "refuses",
            1,
            "ValueError where the shape is of more or fewer ranks, before any group is made. "
            "(new_subgroups_by_enumeration leaves ranks out without a word.)",
            ask=refused,
        ),
    ),
    hints=(
        "Which lines does a mesh of 2 x 3 have along its first axis, and which along its second?",
        "A rank calls dist.new_group for lines that it is not on too. May the order depend on who calls?",
        "torch.arange(n).view(shape), with the axis moved to the end, has a line in each row.",
    ),
)
def groups(answer: Answer, box: Box, rng: Rng) -> tuple[Finding, Looks]:
    """The lines of a mesh, and a sum over each."""
    shape = box.shape
    run = answer.launch(drivers.grouped, shape, ranks=prod(shape))
    own = compare.first_failure(
        compare.equal(reply.members, lines(shape, rank), f"the ranks of the groups of rank {rank}")
        for rank, reply in enumerate(run.results)
    )
    return own, {"they work": lambda: working(run, shape), "each group once": lambda: made_once(run, shape)}


def working(run: Observed[GroupsReply], shape: Shape) -> Finding:
    """Passes if a sum over each group is that over its ranks, and no group is taken from a DeviceMesh."""
    found = []
    for rank, reply in enumerate(run.results):
        if any(re.fullmatch(r"mesh_(dim_\d+|[a-z]+)", words) for words in reply.words):
            said = f"a group of rank {rank} is one of a DeviceMesh; make it with dist.new_group."
            return Finding(False, said)
        sums = [torch.tensor(float(sum(line) + len(line))) for line in lines(shape, rank)]
        for axis, (seen, wanted) in enumerate(compare.side_by_side(reply.sums, sums)):
            what = f"the sum of rank + 1 over the group of axis {axis} on rank {rank}"
            found.append(compare.close(seen, wanted, what))
    return compare.first_failure(found)


def made_once(run: Observed[GroupsReply], shape: Shape) -> Finding:
    """Passes if no more groups were made than the mesh has."""
    needed = sum(prod(shape) // size for size in shape)
    for rank, reply in enumerate(run.results):
        for seen, allowed, which in ((reply.made, needed, ""), (reply.own, len(shape), " that it is in")):
            if seen > allowed:
                what = f"Groups that rank {rank} made{which}"
                return compare.at_most(seen, allowed, what, kind=Kind.TOO_MUCH)
    return Finding(True, "Each group is made once.")
