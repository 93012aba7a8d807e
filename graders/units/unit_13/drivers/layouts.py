"""Drivers of layouts: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass

from torch import Tensor

from course_lib.cluster.topology import Link
from course_lib.planner import Einsum
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.groups import group_option
from graders.units.models import transposed
from graders.units.unit_13.spelling import placement, placements, spelled


@dataclass(frozen=True, slots=True)
class StrategiesReply(DriverReply):
    """found: for each strategy the layouts of its operands and of its result, as `spelled`; or else what was
    returned. sizes: those of the operator afterwards.
    """

    found: PlainData
    sizes: dict[str, int]


def strategies(
    answer: AnswerFunction, cases: list[tuple[str, dict[str, int], tuple[int, ...]]]
) -> list[StrategiesReply]:
    """The strategies of each case: an einsum's spec and sizes, and a mesh."""
    replies = []
    for spec, sizes, mesh in cases:
        found = answer(Einsum(spec, sizes), mesh)
        told = [spelled(each) for each in found] if isinstance(found, list) else spelled(found)
        replies.append(StrategiesReply(told, sizes))
    return replies


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
    """Of each change: what was returned, the argument afterwards, and whether they have memory in common."""

    results: list[PlainData]
    left: list[Tensor]
    shared: list[bool]


def moved(
    answer: AnswerFunction,
    given: list[Tensor],
    changes: list[tuple[str, str]],
    gaps: bool,
    groups: list[list[int]],
) -> MovedReply:
    """What becomes of this rank's parts, one change of layout after another. gaps: they stand transposed."""
    option = group_option(groups)
    parts = [transposed(each) if gaps else each for each in given]
    results = [
        answer(part, placement(source), placement(target), **option)
        for part, (source, target) in zip(parts, changes, strict=True)
    ]
    shared = [
        isinstance(result, Tensor)
        and result.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
        for result, part in zip(results, parts, strict=True)
    ]
    return MovedReply(results, parts, shared)


def reshard_paths(
    answer: AnswerFunction,
    cases: list[tuple[list[str], list[str], int, tuple[int, ...], list[tuple[float, float]], int]],
) -> list[PlainData]:
    """The way for each case: from and to, bytes, mesh, latencies and bandwidths of its axes, dimensions."""
    replies = []
    for source, target, nbytes, mesh, links, dims in cases:
        layouts = placements(source), placements(target)
        made = [Link(*each) for each in links]
        told = answer(*layouts, nbytes, mesh, made, dims)
        kept = made == [Link(*each) for each in links]
        replies.append(spelled(told) if kept else "links that are others afterwards")
    return replies
