"""Drivers of layouts: they run beside the student's code, which could read an expected value here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import Placement

from course_lib.cluster.topology import Link
from course_lib.planner import Einsum
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn
from graders.units.groups import group_option
from graders.units.models import transposed
from graders.units.unit_13.spelling import placement, placements, spelled


def strategies(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """The strategies of each operator: an einsum's spec and sizes, and a mesh."""

    def made(spec: str, sizes: dict[str, int], mesh: tuple[int, ...]) -> PlainData:
        return spelled(answer(Einsum(spec, sizes), mesh))

    return in_turn(made, calls, layouts)


def reshard_costs(
    answer: AnswerFunction, cases: list[tuple[tuple[str, str], int, int, tuple[float, float]]]
) -> list[PlainData]:
    """What each change of a layout costs: from and to, bytes, ranks, and the link's latency and bandwidth."""
    return [
        answer(placement(source), placement(target), nbytes, ranks, Link(*link))
        for (source, target), nbytes, ranks, link in cases
    ]


@dataclass(frozen=True, slots=True)
class MovedReply(DriverReply):
    """Of each change: what was returned, the argument afterwards, and what is wrong with the memory of what
    was returned, or "".
    """

    results: list[PlainData]
    left: list[Tensor]
    memory: list[str]


def moved(
    answer: AnswerFunction,
    given: list[Tensor],
    changes: list[tuple[str, str]],
    gaps: bool,
    groups: list[list[int]],
) -> MovedReply:
    """What becomes of this rank's parts, one change of layout after another. gaps: between the numbers of x
    stand others, or they stand in another order.
    """
    option = group_option(groups)
    parts = [_with_gaps(each) if gaps else each for each in given]
    results, copies = [], []
    for part, (source, target) in zip(parts, changes, strict=True):
        results.append(_waited_for(answer(part, placement(source), placement(target), **option)))
        copies.append(results[-1].clone() if isinstance(results[-1], Tensor) else results[-1])
    used = [_memory(part) for part in parts]
    memory = []
    for result in results:
        memory.append(_wrong_memory(result, used) if isinstance(result, Tensor) else "")
        used += [_memory(result)] if isinstance(result, Tensor) else []
    return MovedReply(copies, parts, memory)


def _waited_for(result: Any) -> Any:
    """What a functional collective returned is waited for when it is first used."""
    if isinstance(result, AsyncCollectiveTensor):
        return result.trigger_wait()  # type: ignore[no-untyped-call]
    return result


def _with_gaps(x: Tensor) -> Tensor:
    return transposed(x) if x.dim() > 1 else x.repeat_interleave(2)[::2]


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _wrong_memory(result: Tensor, used: list[int]) -> str:
    """What is wrong with where a result lies, in words; used: memory of arguments and of earlier results."""
    if _memory(result) in used:
        return "memory of an argument, or of an earlier result"
    several = [stride for stride, length in zip(result.stride(), result.shape, strict=True) if length > 1]
    return "numbers that share their memory with others" if 0 in several else ""


def reshard_paths(
    answer: AnswerFunction,
    cases: list[tuple[list[str], list[str], int, tuple[int, ...], list[tuple[float, float]], int]],
    prices: list[tuple[str, int, int, float, float, float]],
) -> list[PlainData]:
    """The way for each case: from and to, bytes, mesh, latencies and bandwidths of its axes, dimensions.
    prices: kinds such as "SR", bytes, ranks, latency, bandwidth and seconds: what `reshard_cost` says then.
    """
    replies = []
    with _priced(answer, prices):
        for source, target, nbytes, mesh, links, dims in cases:
            layouts = placements(source), placements(target)
            made = [Link(*each) for each in links]
            told = answer(*layouts, nbytes, mesh, made, dims)
            kept = made == [Link(*each) for each in links]
            replies.append(spelled(told) if kept else "links that are others afterwards")
    return replies


@contextmanager
def _priced(
    answer: AnswerFunction, prices: list[tuple[str, int, int, float, float, float]]
) -> Iterator[None]:
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
