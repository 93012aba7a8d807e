"""Drivers of layouts: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass

from course_lib.cluster.topology import Link
from course_lib.planner import Einsum
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.unit_13.spelling import placement, spelled


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
