"""Drivers of layouts: they run beside the student's code, which could read an expected value here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.tensor import Placement

from course_lib.cluster.topology import Link
from course_lib.planner import Einsum
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn
from graders.units.ranks.drivers import calls
from graders.units.unit_13.spelling import placement, placements, spelled

Price = tuple[str, int, int, float, float, float]


def strategies(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """The strategies of each operator: an einsum's spec and sizes, and a mesh."""

    def made(spec: str, sizes: dict[str, int], mesh: tuple[int, ...]) -> PlainData:
        return spelled(answer(Einsum(spec, sizes), mesh))

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
    """The ways for these: from and to, bytes, mesh, latencies and bandwidths of its axes, dimensions, prices.
    These are kinds such as "SR", bytes, ranks, latency, bandwidth and seconds: what `reshard_cost` says then.
    """

    def way(
        source: list[str],
        target: list[str],
        nbytes: int,
        mesh: tuple[int, ...],
        links: list[tuple[float, float]],
        dims: int,
        prices: list[Price],
    ) -> PlainData:
        made = [Link(*each) for each in links]
        with _priced(answer, prices):
            told = answer(placements(source), placements(target), nbytes, mesh, made, dims)
        if made != [Link(*each) for each in links]:
            links[:] = [(each.latency, each.bandwidth) for each in made]
        return spelled(told)

    return in_turn(way, calls, layouts)


@contextmanager
def _priced(answer: AnswerFunction, prices: list[Price]) -> Iterator[None]:
    """Where the answer's cells call `reshard_cost`, the table's seconds; what is not in it, their own."""
    table = {tuple(key): seconds for *key, seconds in prices}
    names = getattr(answer, "__globals__", {})
    own: Any = names.get("reshard_cost")

    def told(source: Placement, target: Placement, nbytes: int, ranks: int, link: Link) -> float:
        kinds = type(source).__name__[0] + type(target).__name__[0]
        key = kinds, nbytes, ranks, link.latency, link.bandwidth
        if source == target:
            return 0.0
        return table[key] if key in table else float(own(source, target, nbytes, ranks, link))

    if own is not None:
        names["reshard_cost"] = told
    try:
        yield
    finally:
        if own is not None:
            names["reshard_cost"] = own
