"""Drivers of unit 07: each gives the answer its tensors, laid out as asked, and tells what became of them."""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.cluster.topology import Cluster, Link
from course_lib.launch.failures import RankFailed
from course_lib.launch.mpi import mpirun
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.ranks.drivers import copied, laid_out, place_of, shares
from graders.units.unit_07 import mpi_calls, waiting

MPI_SECONDS = 15.0
"""What an MPI program may take: a deadlock ends then."""


@dataclass(frozen=True, slots=True)
class MendedReply(DriverReply):
    """result: what the answer returned. argument: its first argument afterwards. same: whether the result is
    that very object.
    """

    result: PlainData
    argument: PlainData
    same: bool


def mended(answer: AnswerFunction, argument: PlainData, *more: PlainData) -> MendedReply:
    """What the answer makes of its arguments."""
    result = answer(argument, *more)
    return MendedReply(copied(result), copied(argument), result is argument)


def mended_late(answer: AnswerFunction, argument: PlainData, late: int) -> MendedReply:
    """As `mended`; on a cluster that counts computing, the rank `late` comes milliseconds late."""
    if dist.get_rank() == late:
        torch.zeros(2**20)
    return mended(answer, argument)


def mended_twice(answer: AnswerFunction, x: Tensor, layout: str, *more: PlainData) -> MendedReply:
    """As `mended`, twice, of x in a layout. result: dtype, shape and device of what the second call returned,
    for each part of a pair; same: whether that lies in the memory of x or of what the first call returned.
    """
    x = x.to("meta") if layout == "meta" else laid_out(x, layout, [])  # Messages are contiguous.
    first, second = answer(x, *more), answer(x, *more)
    copied([first, second])  # Waits for both.
    parts = second if type(second) in (list, tuple) else [second]
    kinds = [f"{p.dtype}{list(p.shape)} on {p.device}" for p in parts if isinstance(p, Tensor)]
    return MendedReply(kinds, None, shares(second, [x, first]))


class TooLate(RuntimeError):
    """Raised in place of an error that came out after its rank had told others something."""


def mended_at_once(answer: AnswerFunction, argument: PlainData, begun: int) -> MendedReply:
    """As `mended`; raises TooLate for a ValueError that comes out after its rank told others something, but
    for its first calls, `begun` of them.
    """
    group: Any = dist.group.WORLD
    carry_out = group.carry_out
    made = []

    def noted(call: Any, *rest: Any) -> Any:
        made.append(call.op)
        return carry_out(call, *rest)

    group.carry_out = noted
    try:
        return mended(answer, argument)
    except ValueError as error:
        told = [op for op in made[begun:] if op != "recv"]
        if told:
            text = f"its ValueError ({error}) came out only after {', '.join(told)}"
            raise TooLate(f"{text}; expected it before the rank sends or waits.") from error
        raise


@dataclass(frozen=True, slots=True)
class DesignReply(DriverReply):
    """argument: x [length] after the call. returned: whether that very tensor was returned, in its memory."""

    argument: Tensor
    returned: bool


def designed(
    answer: AnswerFunction, x: Tensor, numbers: tuple[int, int, float, float, float, float], before: int
) -> DesignReply:
    """What an all-reduce makes of x [length] on the cluster that `machine` makes of the numbers. before: so
    many elements, if any, has the x of a call before this one.
    """
    place = place_of(x)
    for length in [before] * (before > 0):
        answer(torch.ones(length), machine(*numbers))
    returned = answer(x, machine(*numbers)) is x and place_of(x) == place
    return DesignReply(x, returned)


def machine(
    nodes: int, gpus: int, latency: float, bandwidth: float, far_latency: float, far_bandwidth: float
) -> Cluster:
    """Nodes of so many GPUs; latencies (s) and bandwidths (bytes/s) within a node, and between nodes."""
    inside, outside = Link(latency, bandwidth), Link(far_latency, far_bandwidth)
    return Cluster(nodes=nodes, devices_per_node=gpus, intra_node=inside, inter_node=outside)


@dataclass(frozen=True, slots=True)
class MpiReply(DriverReply):
    """What one case was on one rank.

    result: what the answer returned, and array: its array afterwards, both [length]; text where it is no
    array. same: whether they are one object. calls: name, messages sent, bytes sent and receiver of each, -1
    if it has none. unfinished: how many messages were begun and never waited for.
    """

    result: Tensor | str
    array: Tensor | str
    same: bool
    calls: list[tuple[str, int, int, int]]
    unfinished: int


def under_mpirun(
    answer: AnswerFunction, cases: list[list[Tensor]], ranks: int
) -> list[list[MpiReply | None]]:
    """What the answer makes of each case's arrays, by rank, in one run of mpirun.

    cases: by case and rank, tensors [length]; a case with fewer than `ranks` is for the first ranks. None for
    a rank that a case is not for. An exception of the root cause's kind is raised where a rank raised; the
    stub's stays the stub's.
    """
    arrays = [[tensor.numpy() for tensor in case] for case in cases]
    cloudpickle.register_pickle_by_value(mpi_calls)
    cloudpickle.register_pickle_by_value(waiting)
    try:
        everyone = mpirun(mpi_calls.play, answer, arrays, ranks=ranks, timeout=MPI_SECONDS)
    except RankFailed as error:
        if error.root.type == "NotImplementedError" and not error.root.message:
            raise NotImplementedError from None
        raise
    return [[case and _told(case) for case in rank["told"]] for rank in everyone]


def _told(case: dict[str, Any]) -> MpiReply:
    arrays = _tensor(case["result"]), _tensor(case["array"])
    return MpiReply(*arrays, case["same"], case["calls"], case["unfinished"])


def _tensor(value: Any) -> Tensor | str:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else repr(value)[:200]
