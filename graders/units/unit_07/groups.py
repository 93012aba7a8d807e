"""What holds for all hand-written collectives: any group."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from graders.grading.kit import Finding, compare
from graders.units.unit_07.collectives import Played, in_place, results
from graders.units.unit_07.shapes import in_other_shapes
from graders.units.unit_07.tries import Tries
from graders.units.unit_07.worlds import World


def in_several_groups(world: World) -> list[World]:
    """A group; one that has its members from the second on, and another one: their places are others; and one
    of all of these.

    A root, which is at the last place, stays the same rank; in the last group it is the first, not rank 0.
    """
    members = world.places
    others = (*members[1:], members[-1] + 1)
    more = (*members, members[-1] + 1)
    longer = replace(world, ranks=len(more), length=4 * len(more), members=more, root=0)
    return [world, replace(world, members=others, root=max(world.root - 1, 0)), longer]


def in_other_forms(world: World, any_dtype: bool, any_layout: bool) -> list[World]:
    """Tensors of other shapes and, where the answer takes them, of another dtype and another layout."""
    number, short, matrix = in_other_shapes(
        world,
        torch.float64 if any_dtype else world.dtype,
        torch.int64 if any_dtype else world.dtype,
    )
    return [number, short, replace(matrix, layout="transposed" if any_layout else world.layout)]


def on_a_subgroup(
    tries: Tries, subgroups: Sequence[Sequence[World]], forms: Sequence[World], kept: bool, together: bool
) -> Finding:
    """Passes if results are right in each group, arguments too if they are to be `kept` here, and if it is
    `within_the_group`. forms: worlds that come after the last ones.
    """

    checks: list[Callable[[Played], Finding]] = [results, *[in_place] * kept, within_the_group]

    def right(played: Played) -> Finding:
        return compare.first_failure(check(played) for check in checks)

    *others, last = subgroups
    several = launches([*others, [*last, *forms]], together)
    return compare.first_failure(tries.found(each, right) for each in several)


def within_the_group(played: Played) -> Finding:
    """Passes if all messages were sent in the group, or in one of some of its members."""
    groups = [set(world.places) for world in played.worlds]
    for event in played.observed.events:
        inside = any(members.issuperset(event.group) for members in groups)
        if event.op == "send" and event.group and not inside:
            text = f"with {played.worlds[0]}, rank {event.rank} sends to rank {event.peer} in a larger group"
            said = f"{text}, where others' messages may come between; expected group=group."
            return Finding(False, said)
    return Finding(True, "All messages were sent in the group.")


def launches(several: Sequence[Sequence[World]], together: bool) -> list[Sequence[World]]:
    """Of worlds that share one; none does where messages of a later call may be taken for others."""
    return list(several) if together else [[world] for worlds in several for world in worlds]
