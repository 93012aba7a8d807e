"""Drivers of layouts: they run beside the student's code, which could read an expected value here.

Placements cross as "R", "P" and "S(1)", links as {"latency": ..., "bandwidth": ...}.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from course_lib.cluster.topology import Link
from course_lib.planner import Einsum, Strategy
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn
from graders.units.ranks import drivers as ranks


def strategies(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """The strategies, in words, of each operator: an einsum's spec and sizes, and a mesh."""

    def made(spec: str, sizes: dict[str, int], mesh: tuple[int, ...]) -> PlainData:
        found = answer(Einsum(spec, sizes), mesh)
        return [str(each) if isinstance(each, Strategy) else None for each in found]

    return in_turn(made, calls, layouts)


def priced(answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()) -> list[Called]:
    """What the answer returns for these placements, links and numbers."""
    return in_turn(_of_plain_data(answer), calls, layouts)


def moved(answer: AnswerFunction, cases: list[list[PlainData]], *rest: Any) -> list[Called]:
    """What becomes of this rank's parts, each with the placements from and to. rest: see `ranks.drivers`."""
    return ranks.calls(_of_plain_data(answer), cases, *rest)


def _of_plain_data(answer: AnswerFunction) -> Callable[..., PlainData]:
    return lambda *given, **options: plain(answer(*map(made_of, given), **options))


def made_of(value: PlainData) -> Any:
    """What an argument stands for."""
    if isinstance(value, dict):
        return Link(**value)
    if isinstance(value, tuple | list):
        return type(value)(map(made_of, value))
    if not isinstance(value, str):
        return value
    return {"R": Replicate(), "P": Partial()}[value] if value in "RP" else Shard(int(value[2:-1]))


def plain(value: Any) -> PlainData:
    """The other way round, and tuples as lists; what has no place here is named by its type."""
    if isinstance(value, tuple | list):
        return [*map(plain, value)]
    if isinstance(value, Placement):
        return "P" if value == Partial() else str(value)
    return value if isinstance(value, int | float | Tensor) else f"a {type(value).__name__}"
