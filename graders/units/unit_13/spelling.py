"""Layouts as plain data, and back: how they travel between a grader and its drivers."""

from typing import Any

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from course_lib.planner import Placements, Strategy
from graders.grading.answer import PlainData


def spelled(value: Any) -> PlainData:
    """A placement as "R", "P" or "S(1)", a strategy as [operands, result]; tuples and lists part by part.

    Anything else is named by its type, so that it equals no layout.
    """
    if isinstance(value, Strategy):
        return [spelled(value.operands), spelled(value.result)]
    if isinstance(value, tuple | list):
        return [spelled(each) for each in value]
    if isinstance(value, Placement):
        return "P" if value == Partial() else str(value)
    return value if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"


def placements(text: list[str]) -> Placements:
    """What `spelled` made "R", "P" and "S(1)" of."""
    return tuple(placement(each) for each in text)


def placement(text: str) -> Placement:
    """One of them."""
    if text == "R":
        return Replicate()
    return Partial() if text == "P" else Shard(int(text[2:-1]))
