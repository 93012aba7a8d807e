"""Drivers of unit 07: each gives the answer what it asks for, and tells what became of it."""

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster, Link
from course_lib.launch.failures import RankFailed
from course_lib.launch.mpi import mpirun
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.unit_07 import mpi_calls

MPI_SECONDS = 30.0
"""What an MPI program may take."""


@dataclass(frozen=True, slots=True)
class FitReply(DriverReply):
    """samples: what they are after the call."""

    returned: PlainData
    samples: PlainData


def fitted(answer: AnswerFunction, samples: PlainData) -> FitReply:
    """What the answer makes of the samples."""
    return FitReply(answer(samples), samples)


@dataclass(frozen=True, slots=True)
class DesignReply(DriverReply):
    """argument: x [length] after the call. returned: whether that very tensor was returned."""

    argument: Tensor
    returned: bool


def designed(
    answer: AnswerFunction, x: Tensor, numbers: tuple[int, int, float, float, float, float]
) -> DesignReply:
    """What an all-reduce makes of x [length] on the cluster that `machine` makes of the numbers."""
    returned = answer(x, machine(*numbers)) is x
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
    array. same: whether they are one object. calls: name, bytes sent and receiver of each, -1 if it sends
    nothing. unfinished: how many messages were begun and never waited for.
    """

    result: Tensor | str
    array: Tensor | str
    same: bool
    calls: list[tuple[str, int, int]]
    unfinished: int


def under_mpirun(answer: AnswerFunction, cases: list[list[Tensor]], ranks: int) -> list[list[MpiReply]]:
    """What the answer makes of each case's arrays [length], by rank, in one run of mpirun.

    An exception of the root cause's kind is raised where a rank raised; the stub's stays the stub's.
    """
    arrays = [[tensor.numpy() for tensor in case] for case in cases]
    cloudpickle.register_pickle_by_value(mpi_calls)
    try:
        everyone = mpirun(mpi_calls.play, answer, arrays, ranks=ranks, timeout=MPI_SECONDS)
    except RankFailed as error:
        if error.root.type == "NotImplementedError" and not error.root.message:
            raise NotImplementedError from None
        raise
    return [
        [MpiReply(_tensor(result), _tensor(array), *rest) for result, array, *rest in rank]
        for rank in everyone
    ]


def _tensor(value: Any) -> Tensor | str:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else repr(value)[:200]
