"""What a collective of unit 07 is to its grader."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from graders.grading.kit import PlainData, Rng
from graders.units.unit_07.worlds import World

Arguments = list[Any]
"""Positional arguments of one rank: tensors, lists of tensors, None, numbers."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What one rank must have after the call.

    result: what is returned; `returned`: the position of the argument that it must be, None for a new
    object. arguments: what these hold afterwards; ANYTHING where that is left open.
    """

    result: Any
    arguments: Arguments
    returned: int | None = 0


ANYTHING = object()


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective: `arguments(rng, world)` and `expected(world, arguments)` have an item for each rank.

    options: keyword arguments, the same on every rank.
    """

    arguments: Callable[[Rng, World], list[Arguments]]
    expected: Callable[[World, list[Arguments]], list[Expected]]
    options: Callable[[World], dict[str, PlainData]] = field(default=lambda world: {})
