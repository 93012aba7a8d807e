"""Unit 13, models and clusters to plan for, from plain numbers. Drivers use it too: it expects nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.cluster.topology import Cluster, Link
from course_lib.models import Transformer, TransformerConfig, next_token_loss
from course_lib.planner import Model


@dataclass(frozen=True, slots=True)
class Numbers:
    """A model, a batch of so many samples, and a cluster.

    inner: of each piece, a residual MLP of this width, the units inside; or nothing, for a transformer with
    two blocks of this width that reads 64 tokens. links: latency and bandwidth within a node, and between
    nodes.
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
        config = f"2, {self.width}, heads=4, vocabulary=1000, context=64, tied=False"
        mlps = f"residual MLPs of width {self.width} with {self.inner} units inside"
        model = mlps if self.inner else f"Transformer(TransformerConfig({config}))"
        within, between = (f"Link({self.links[at]:.4g}, {self.links[at + 1]:.4g})" for at in (0, 2))
        return (
            f"{model}, {self.samples} samples, on Cluster({self.nodes}, {self.devices}, {within}, {between}, "
            f"flops={self.flops:.4g}, memory_bandwidth={self.memory_bandwidth:.4g})"
        )

    def model(self) -> Model:
        with torch.device("meta"):
            if self.inner:
                x = torch.empty(self.samples, self.width)
                return Model([Residual(self.width, each) for each in self.inner], x, x, functional.mse_loss)
            tokens = torch.empty(self.samples, 64, dtype=torch.int64)
            config = TransformerConfig(2, self.width, heads=4, vocabulary=1000, context=64, tied=False)
            return Model(Transformer(config).pieces, tokens, tokens, next_token_loss)

    def cluster(self) -> Cluster:
        within, between = Link(*self.links[:2]), Link(*self.links[2:])
        return Cluster(
            self.nodes,
            self.devices,
            within,
            between,
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
