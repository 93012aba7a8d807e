"""Drivers of layouts: they run beside the student's code, which could read an expected value here."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from course_lib.cluster.topology import Link
from course_lib.planner import Einsum, Strategy
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn
from graders.units.ranks.drivers import calls


def strategies(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """The strategies, in words, of each operator: an einsum's spec and sizes, and a mesh."""

    def made(spec: str, sizes: dict[str, int], mesh: tuple[int, ...]) -> PlainData:
        found = answer(Einsum(spec, sizes), mesh)
        return [str(each) if isinstance(each, Strategy) else None for each in found]

    return in_turn(made, calls, layouts)


def reshard_costs(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """What each change of a layout costs: from and to, bytes, ranks, and the link's latency and bandwidth."""

    def priced(source: str, target: str, nbytes: int, ranks: int, link: tuple[float, float]) -> PlainData:
        return answer(placement(source), placement(target), nbytes, ranks, Link(*link))

    return in_turn(priced, calls, layouts)


def moved(answer: AnswerFunction, cases: list[list[PlainData]], *rest: Any) -> list[Called]:
    """What becomes of this rank's parts, each with the placements from and to. rest: see `ranks.drivers`."""

    def named(x: Tensor, source: str, target: str, **options: Any) -> PlainData:
        return answer(x, placement(source), placement(target), **options)

    return calls(named, cases, *rest)


def reshard_paths(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """The ways for these: from and to, bytes, mesh, latencies and bandwidths of its axes, dimensions."""

    def way(
        source: tuple[str, ...],
        target: tuple[str, ...],
        nbytes: int,
        mesh: tuple[int, ...],
        links: list[tuple[float, float]],
        dims: int,
    ) -> PlainData:
        ends = (tuple(map(placement, each)) for each in (source, target))
        return spelled(answer(*ends, nbytes, mesh, [Link(*each) for each in links], dims))

    return in_turn(way, calls, layouts)


def placement(text: str) -> Placement:
    """What "R", "P" or "S(1)" stands for."""
    if text == "R":
        return Replicate()
    return Partial() if text == "P" else Shard(int(text[2:-1]))


def spelled(value: Any) -> PlainData:
    """Placements as "R", "P" and "S(1)", tuples as lists; anything else is named by its type."""
    if isinstance(value, tuple | list):
        return [*map(spelled, value)]
    if isinstance(value, Placement):
        return "P" if value == Partial() else str(value)
    return value if isinstance(value, int | float) else f"a {type(value).__name__}"
