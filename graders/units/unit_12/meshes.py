"""Unit 12, a mesh of ranks: places in it, and the groups along its axes."""

import re
from math import prod
from typing import Any

import torch

from graders.grading.kit import Answer, Criterion, Finding, Findings, Kind, Observed, Rng, compare, exercise
from graders.units.unit_12.drivers import mesh as drivers
from graders.units.unit_12.drivers.mesh import GroupsReply

Shape = tuple[int, ...]


@exercise(
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion(
            "coordinates",
            2,
            "Count upwards from (0, 0, 0) as an odometer does: the last axis turns with every rank, the one "
            "before it when the last has gone round.",
        ),
        Criterion("any mesh", 1, "Any number of axes, from none to many, of any sizes, among them 1."),
        Criterion("refuses", 1, "ValueError for a rank that is not in the mesh: too large, or negative."),
    ),
    hints=(
        "How many ranks further is the next place along the last axis? Along the one before it?",
        "divmod(rank, size) gives how often the last axis went round, and where it stands now.",
    ),
)
def mesh_coordinates(answer: Answer, rng: Rng) -> Findings:
    """All ranks of some meshes, and ranks of none."""
    three: Shape = (rng.integer(2, 4), rng.integer(5, 7), rng.integer(2, 3))
    cases = [(rank, three) for rank in range(prod(three))]
    yield "coordinates", _right(answer, cases)
    shapes = [(), (1,), (7,), (3, 1, 2), (1, 4), (2, 1, 3, 1, 2)]
    cases = [(rank, shape) for shape in shapes for rank in range(prod(shape))]
    large = (10**6, 10**6, 10**6)
    places = [rng.integer(10**5, 10**6 - 1) for _ in large]
    huge = places[0] * 10**12 + places[1] * 10**6 + places[2]
    yield "any mesh", _right(answer, [*cases, (huge, large), (10**18 - 1, large)])
    outside = [(prod(shape), shape) for shape in (three, (), (3, 1, 2))] + [
        (-1, three),
        (-prod(three), three),
    ]
    replies = answer.call(drivers.places_refused, outside)
    yield (
        "refuses",
        compare.first_failure(_refused(*each) for each in compare.side_by_side(outside, replies)),
    )


def _right(answer: Answer, cases: list[tuple[int, Shape]]) -> Finding:
    replies = answer.call(drivers.places, cases)
    return compare.first_failure(
        compare.equal(reply, place_of(*case), f"mesh_coordinates{case}")
        for case, reply in compare.side_by_side(cases, replies)
    )


def _refused(case: tuple[int, Shape], reply: dict[str, Any]) -> Finding:
    """Passes if the answer raised ValueError."""
    return Finding(
        "ValueError" in _raised(reply), f"mesh_coordinates{case} {_did(reply)}; expected ValueError."
    )


def _raised(reply: dict[str, Any]) -> list[Any]:
    """The classes of what was raised, if a list of them came back."""
    names = reply.get("raised")
    return names if isinstance(names, list) else []


def _did(reply: dict[str, Any]) -> str:
    """What the answer did, in words."""
    names = _raised(reply)
    return f"raises {names[0]}" if names else f"returns {compare.shown(reply.get('gave'))}"


def place_of(rank: int, shape: Shape) -> Shape:
    """The coordinates of a rank."""
    return tuple(rank // prod(shape[axis + 1 :]) % size for axis, size in enumerate(shape))


def lines(shape: Shape, axis: int) -> list[list[int]]:
    """The ranks of each group along an axis."""
    numbers = torch.arange(prod(shape)).view(shape).movedim(axis, -1)
    return numbers.reshape(-1, shape[axis]).tolist()


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "own groups",
            3,
            "One group an axis, in the order of the axes. Its ranks have all other coordinates in common. "
            "dist.new_group is called by every rank, for every group, in the same order.",
        ),
        Criterion("they work", 1, "A group of ranks in ascending order, on which a collective can run."),
        Criterion(
            "any mesh",
            2,
            "Axes of size 1 have groups of one rank; there may be one axis, or four.",
            needs=("own groups", "they work"),
        ),
        Criterion("each group once", 1, "Make every line of the mesh once, not once for each of its ranks."),
        Criterion(
            "refuses", 1, "ValueError where the shape is of more or fewer ranks, before any group is made."
        ),
    ),
    hints=(
        "Which lines does a mesh of 2 x 3 have along its first axis, and which along its second?",
        "A rank calls dist.new_group for lines that it is not on too. May the order depend on who calls?",
        "torch.arange(n).view(shape), with the axis moved to the end, has a line in each row.",
    ),
)
def groups(answer: Answer, rng: Rng) -> Findings:
    """Meshes of a few ranks, among them some with axes of size 1."""
    first = rng.choice(((2, 3, 2), (3, 2, 2), (2, 2, 3)))
    run = _launch(answer, first)
    yield "own groups", _own(run, first)
    yield "they work", _working(run, first)
    others = [(1,), (3,), (1, 4), (3, 1, 2), (2, 1, 3, 1), first]
    runs = [_launch(answer, shape) for shape in others]
    found = (check(*each) for each in zip(runs, others, strict=True) for check in (_own, _working))
    yield "any mesh", compare.first_failure(found)
    yield "each group once", compare.first_failure(map(_made, (run, *runs), (first, *others)))
    yield "refuses", compare.first_failure(_refuses(answer, shape) for shape in ((2, 2), (2, 3), (5, 2), ()))


def _launch(answer: Answer, shape: Shape) -> Observed[GroupsReply]:
    return answer.launch(drivers.grouped, shape, ranks=prod(shape))


def _own(run: Observed[GroupsReply], shape: Shape) -> Finding:
    """Passes if each rank has the groups of its lines."""
    return compare.first_failure(
        compare.equal(
            reply.members,
            [next(line for line in lines(shape, axis) if rank in line) for axis in range(len(shape))],
            f"the ranks of the groups of rank {rank}, shape {shape}",
        )
        for rank, reply in enumerate(run.results)
    )


def _working(run: Observed[GroupsReply], shape: Shape) -> Finding:
    """Passes if a sum over each group is that over its ranks, and no group is taken from a DeviceMesh."""
    for rank, reply in enumerate(run.results):
        taken = [words for words in reply.words if re.fullmatch(r"mesh_(dim_\d+|[a-z]+)", words)]
        if taken:
            return Finding(
                False, f"a group of rank {rank} is one of a DeviceMesh; make it with dist.new_group."
            )
        if len(reply.sums) != len(shape):
            return Finding(False, f"rank {rank} has {len(reply.sums)} groups for shape {shape}.")
        for axis, seen in enumerate(reply.sums):
            line = next(line for line in lines(shape, axis) if rank in line)
            expected = torch.tensor(float(sum(line) + len(line)))
            what = f"the sum of rank + 1 over the group of axis {axis}, shape {shape}, on rank {rank}"
            found = compare.close(seen, expected, what)
            if not found.passed:
                return found
    return Finding(True, f"Sums over all groups of shape {shape} are right.")


def _made(run: Observed[GroupsReply], shape: Shape) -> Finding:
    """Passes if no more groups were made than the mesh has."""
    needed = sum(prod(shape) // size for size in shape)
    for rank, reply in enumerate(run.results):
        what = f"Groups that rank {rank} made for shape {shape}"
        for seen, allowed, which in ((reply.made, needed, ""), (reply.own, len(shape), " that it is in")):
            if seen > allowed:
                return compare.at_most(seen, allowed, what + which, kind=Kind.TOO_MUCH)
    return Finding(True, "Each group is made once.")


def _refuses(answer: Answer, shape: Shape) -> Finding:
    """Passes if ranks that are one more or fewer raise ValueError and make no group."""
    ranks = prod(shape) + 1 if prod(shape) < 6 else prod(shape) - 1
    run = answer.launch(drivers.refused, shape, ranks=ranks)
    for rank, reply in enumerate(run.results):
        made = reply.get("made")
        if "ValueError" not in _raised(reply) or made != 0:
            told = f"with shape {shape} on {ranks} ranks, rank {rank} makes {made} groups"
            return Finding(False, f"{told} and {_did(reply)}; expected ValueError before any group is made.")
    return Finding(True, f"Shape {shape} on {ranks} ranks is refused.")
