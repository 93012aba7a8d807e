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
    for shape, ranks in (((2, 2), 5), ((2, 3), 5)):
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
            "any mesh",
            1,
            "Axes of size 1 have groups of one rank; there may be one axis, or four.",
            vary=vary(shape=((3,), (1, 4), (2, 1, 3, 1))),
        ),
        Criterion(
            "made once",
            2,
            "Make every line of the mesh by dist.new_group, once, not once for each of its ranks.",
            how=look("made once"),
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
    """The lines of a mesh."""
    shape = box.shape
    run = answer.launch(drivers.grouped, shape, ranks=prod(shape))
    own = compare.first_failure(
        compare.equal(reply.members, lines(shape, rank), f"the ranks of the groups of rank {rank}")
        for rank, reply in enumerate(run.results)
    )
    return own, {"made once": lambda: made_once(run, shape)}


def made_once(run: Observed[GroupsReply], shape: Shape) -> Finding:
    """Passes if no more groups were made than the mesh has, and none is taken from a DeviceMesh."""
    needed = sum(prod(shape) // size for size in shape)
    found = []
    for rank, reply in enumerate(run.results):
        of_mesh = any(re.fullmatch(r"mesh_(dim_\d+|[a-z]+)", words) for words in reply.words)
        said = f"a group of rank {rank} is one of a DeviceMesh; make it with dist.new_group."
        found.append(Finding(not of_mesh, said))
        found.append(compare.at_most(reply.made, needed, f"Groups that rank {rank} made", kind=Kind.TOO_MUCH))
    return compare.first_failure(found, "Each group is made once.")
