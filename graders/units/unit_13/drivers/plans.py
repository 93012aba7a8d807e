"""The driver of unit 13's open task: a model and a cluster from plain numbers, and the plan as plain data."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.cluster.topology import Cluster, Link
from course_lib.planner import Model, ParallelPlan
from graders.grading.answer import AnswerFunction, DriverReply


@dataclass(frozen=True, slots=True)
class Numbers:
    """Residual MLPs of this width, with so many units inside of each, a batch of so many samples, and a
    cluster. links: latency and bandwidth within a node, and between nodes.
    """

    inner: list[int]
    width: int
    samples: int
    nodes: int
    devices: int
    links: list[float]
    flops: float
    memory_bandwidth: float

    def __str__(self) -> str:
        """The model and the cluster, so that they can be made again."""
        within, between = (f"Link({self.links[at]:.4g}, {self.links[at + 1]:.4g})" for at in (0, 2))
        return (
            f"residual MLPs of width {self.width} with {self.inner} units inside, {self.samples} samples, on "
            f"Cluster({self.nodes}, {self.devices}, {within}, {between}, flops={self.flops:.4g}, "
            f"memory_bandwidth={self.memory_bandwidth:.4g})"
        )

    def model(self) -> Model:
        with torch.device("meta"):
            x = torch.empty(self.samples, self.width)
            return Model([Residual(self.width, each) for each in self.inner], x, x, functional.mse_loss)

    def cluster(self) -> Cluster:
        return Cluster(
            self.nodes,
            self.devices,
            Link(*self.links[:2]),
            Link(*self.links[2:]),
            flops=self.flops,
            memory_bandwidth=self.memory_bandwidth,
        )


class Residual(nn.Module):
    """x [n, width] + an MLP of it, which has so many units inside."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(functional.gelu(self.up(x)))
        return y


@dataclass(frozen=True, slots=True)
class PlanReply(DriverReply):
    """The fields of the plan that the answer returned. kind: the name of its type."""

    kind: str
    cuts: list[int]
    data: int
    tensor: int
    micro_batches: int
    split: dict[str, str]


def planned(answer: AnswerFunction, numbers: list[object], memory: float) -> PlanReply:
    """The answer's plan for a model and a cluster of these numbers, and devices with so many bytes."""
    given = Numbers(*numbers)  # type: ignore[arg-type]
    plan = answer(given.model(), given.cluster(), memory)
    if not isinstance(plan, ParallelPlan):
        return PlanReply(type(plan).__name__, [], 0, 0, 0, {})
    return PlanReply(
        "ParallelPlan", list(plan.cuts), plan.data, plan.tensor, plan.micro_batches, dict(plan.split)
    )
