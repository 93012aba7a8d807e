"""The driver of unit 13's open task: a model and a cluster from plain numbers, and the plan as plain data."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.cluster.topology import Cluster, Link
from course_lib.planner import Model, ParallelPlan
from graders.grading.answer import AnswerFunction, DriverReply

WIDTH = 1024


class Residual(nn.Module):
    """x [n, WIDTH] + an MLP of it, which has so many units inside."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(functional.gelu(self.up(x)))
        return y


def model_of(inner: list[int], samples: int) -> Model:
    """So many units inside of each MLP."""
    with torch.device("meta"):
        x = torch.empty(samples, WIDTH)
        return Model([Residual(each) for each in inner], x, x, functional.mse_loss)


def cluster_of(nodes: int, devices: int, speeds: list[float]) -> Cluster:
    """speeds: latency and bandwidth within a node, both between nodes, flops and memory bandwidth."""
    within, between, (flops, memory_bandwidth) = Link(*speeds[:2]), Link(*speeds[2:4]), speeds[4:]
    return Cluster(nodes, devices, within, between, flops=flops, memory_bandwidth=memory_bandwidth)


@dataclass(frozen=True, slots=True)
class PlanReply(DriverReply):
    """The fields of the plan that the answer returned. kind: the name of its type."""

    kind: str
    cuts: list[int]
    data: int
    tensor: int
    micro_batches: int
    split: dict[str, str]


def planned(
    answer: AnswerFunction,
    inner: list[int],
    samples: int,
    nodes: int,
    devices: int,
    speeds: list[float],
    memory: float,
) -> PlanReply:
    """The answer's plan for this model and cluster, and devices with so many bytes."""
    plan = answer(model_of(inner, samples), cluster_of(nodes, devices, speeds), memory)
    if not isinstance(plan, ParallelPlan):
        return PlanReply(type(plan).__name__, [], 0, 0, 0, {})
    return PlanReply(
        "ParallelPlan", list(plan.cuts), plan.data, plan.tensor, plan.micro_batches, dict(plan.split)
    )
