"""The grader of `groups`."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from graders.grading.cases import both
from graders.grading.expected import ANYTHING, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_12.drivers import mesh
from graders.units.unit_12.mesh_coordinates import raises_value_error


@dataclass(frozen=True, slots=True)
class Box(Ranks):
    """shape: of a mesh that has all ranks."""

    ranks: int = 12
    shape: tuple[int, ...] = feature((2, 3, 2), "a mesh of shape {}")


def refused(answer: Answer, rng: Rng) -> Finding:
    """Passes if shapes of more or fewer ranks than there are raise ValueError and make no group."""
    found = []
    for shape, ranks in (((2, 2), 5), ((2, 3), 5)):
        run = answer.launch(mesh.refused, shape, ranks=ranks)
        for rank, told in enumerate(run.results):
            what = f"With shape {shape} on {ranks} ranks, rank {rank} makes {told.get('made')} groups and"
            finding = raises_value_error(told, what)
            early = f"{finding.seen[:-1]} before any group is made."
            found.append(finding if told.get("made") == 0 else Finding(False, early))
    return compare.first_failure(found)


def made_once(tried: Tried[Any]) -> Finding:
    """Passes if no more groups were made than the mesh has, and none is taken from a DeviceMesh."""
    shape = tried.case.features.shape
    needed = sum(prod(shape) // size for size in shape)
    found = []
    for rank, told in enumerate(tried.seen.results[0]):
        made = compare.as_float(told["made"])
        found.append(
            compare.equal(told["of a mesh"], False, f"whether a DeviceMesh made a group of rank {rank}")
        )
        found.append(compare.at_most(made, needed, f"Groups that rank {rank} made", kind=Kind.TOO_MUCH))
    return compare.first_failure(found, "Each group is made once.")


@on_ranks(
    base=Box(),
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "own groups",
            4,
            "One group an axis, in the order of the axes. Its ranks have all other coordinates in common. "
            "dist.new_group is called by every rank, for every group, in the same order.",
            vary=both(shape=(3, 2, 2)),
        ),
        Criterion(
            "any mesh",
            1,
            "Axes of size 1 have groups of one rank; there may be one axis, or four.",
            vary=both(ranks=3, shape=(3,)) + both(ranks=4, shape=(1, 4)) + both(ranks=6, shape=(2, 1, 3, 1)),
        ),
        Criterion("made once", 2, "Make each line of the mesh once, not once for each rank.", how=made_once),
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
    arguments=lambda rng, box: [[box.shape]] * box.ranks,
    calls=None,
    driver=mesh.grouped,
    what="rank {}",
)
def groups(box: Box, given: list[Arguments]) -> list[Expected]:
    """The lines of a mesh."""
    numbers = torch.arange(box.ranks).view(box.shape)
    lines = [numbers.movedim(axis, -1).reshape(-1, size).tolist() for axis, size in enumerate(box.shape)]
    told = {"of a mesh": ANYTHING, "made": ANYTHING}
    return [
        Expected(
            {"groups": [next(line for line in of_axis if rank in line) for of_axis in lines], **told},
            {"shape": box.shape},
        )
        for rank in range(box.ranks)
    ]
