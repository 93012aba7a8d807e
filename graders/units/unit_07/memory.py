"""What holds for all hand-written collectives: any layout."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

from graders.grading.kinds import Kind
from graders.grading.kit import Finding, compare
from graders.units.unit_07.collectives import Played, layouts
from graders.units.unit_07.dtypes import elsewhere
from graders.units.unit_07.groups import launches
from graders.units.unit_07.tries import Tries
from graders.units.unit_07.worlds import World


@dataclass(frozen=True, slots=True)
class Right:
    """What rows before have found: whether lengths are right, and dtypes."""

    lengths: bool
    dtypes: bool


def any_layout(
    tries: Tries, model: World, single: Played, after_another: bool, right: Right, special: Sequence[World]
) -> Finding:
    """Passes if results are right of tensors with gaps between the elements, and of a matrix that stands
    column by column: of five rows of three, which cut flat has other parts, if lengths are right; in int64,
    and on another device, too, if dtypes are. And if tensors with gaps take no more messages than without.
    single: a launch with the model. special: see `any_dtype`. Several share a launch if they may come
    `after_another`.
    """
    gaps = tries.found(
        [replace(model, layout="strided")],
        lambda played: compare.first_failure([layouts(played), _as_few_messages(played, single)]),
    )
    both = launches([_gaps_and_columns(world, right) for world in (model, *special)], after_another)
    others = (tries.found(each, layouts) for each in both)
    away = (elsewhere(tries, _gaps_and_columns(model, right)[:1]) for _ in range(right.dtypes))
    return compare.first_failure(chain([gaps], others, away))


def _gaps_and_columns(world: World, right: Right) -> list[World]:
    """A matrix that stands column by column, and tensors with gaps."""
    length = 5 if right.lengths else 2 * world.ranks
    dtype = torch.int64 if right.dtypes else world.dtype
    return [
        replace(world, layout="transposed", length=length, columns=3),
        replace(world, layout="strided", dtype=dtype),
    ]


def _as_few_messages(played: Played, single: Played) -> Finding:
    """Passes if ranks send no more messages than where tensors have no gaps."""
    made, usual = (sum(event.op == "send" for event in each.observed.events) for each in (played, single))
    text = f"with {played.worlds[0]}, all ranks together send {made} messages, and without gaps {usual}."
    return Finding(made <= usual, text, Kind.OTHER if made <= usual else Kind.TOO_MUCH)
