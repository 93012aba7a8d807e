"""What unit 08 trains: gradients and clients that take as long as they are told, and what drivers tell."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib import span
from course_lib.cluster.topology import Cluster, Link
from graders.grading.answer import DriverReply, PlainData

GRADIENT = "gradient"
"""The span of one."""
RATE = 1e12
"""Bytes a second of a device's memory: an answer's own arithmetic takes next to no time."""
LINK = Link(latency=1e-6, bandwidth=1e9)
SIDE = 100
"""Side of the square matrices that a client multiplies, so that its training takes virtual time."""

Batches = list[dict[str, Tensor | float]]
"""What `Gradients` takes: for each batch slope [D], offset [D], seconds, and perhaps turn [D, D]."""


def star(ranks: int) -> Cluster:
    """So many devices with one server in their midst: computing takes time, as do messages."""
    return Cluster(devices_per_node=ranks, intra_node=LINK, memory_bandwidth=RATE)


def two_levels(nodes: int, gpus: int, latency: float, bandwidth: float) -> Cluster:
    """Nodes of so many GPUs; seconds and bytes a second between nodes, and within one ten times as good."""
    near, far = Link(latency / 10, 10 * bandwidth), Link(latency, bandwidth)
    return Cluster(nodes=nodes, devices_per_node=gpus, intra_node=near, inter_node=far, memory_bandwidth=RATE)


class Gradients:
    """The gradient of a worker's next batch, at weights of any shape with D numbers.

    like: of its shape and dtype the weights have to be. seen: those of each call. given: what it returned.
    """

    def __init__(self, batches: Batches, like: Tensor) -> None:
        self._batches, self._like = batches, like
        self.seen: list[Tensor] = []
        self.given: list[Tensor] = []

    def __call__(self, w: Tensor) -> Tensor:
        if not self._batches:
            raise RuntimeError("Rank 0 has no batches: it serves, and computes no gradient.")
        if len(self.seen) == len(self._batches):
            raise RuntimeError(f"A gradient too many: there are {len(self._batches)} batches.")
        if (w.shape, w.dtype) != (self._like.shape, self._like.dtype):
            wanted = f"{self._like.dtype} of shape {list(self._like.shape)}"
            raise TypeError(f"gradient takes weights like w, {wanted}; it got {w.dtype} of {list(w.shape)}.")
        batch = self._batches[len(self.seen)]
        with span(GRADIENT):
            pass_time(float(batch["seconds"]))
        self.seen.append(w.detach().clone())
        gradient = gradient_of(batch, self.seen[-1])
        self.given.append(gradient.clone())
        return gradient


def pass_time(seconds: float) -> None:
    """Compute for so many seconds of virtual time: a tensor without data takes them to be made."""
    torch.empty(int(seconds * RATE), dtype=torch.uint8, device="meta")


def gradient_of(batch: dict[str, Tensor | float], w: Tensor) -> Tensor:
    """That of a batch, at weights w of any shape."""
    slope, offset = torch.as_tensor(batch["slope"]), torch.as_tensor(batch["offset"])
    flat = w if w.dim() == 1 else w.reshape(-1)
    gradient = torch.addcmul(offset, slope, flat)
    if "turn" in batch:
        gradient = gradient + torch.as_tensor(batch["turn"]) @ flat
    return gradient if w.dim() == 1 else gradient.reshape(w.shape)


@dataclass(frozen=True, slots=True)
class TrainedReply(DriverReply):
    """What a training returned on a rank, its w afterwards, and what `Gradients` has seen and given."""

    result: PlainData
    w: Tensor
    seen: list[Tensor]
    given: list[Tensor]


class Client:
    """The `client_update` of a rank. given: the weights [n] of each call."""

    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def __call__(self, w: Tensor, samples: Tensor) -> Tensor:
        """As `updated`, and works in w, which it may."""
        self.given.append(w.clone())
        torch.mm(torch.zeros(SIDE, SIDE), torch.zeros(SIDE, SIDE))
        result = updated(w, samples)
        w.fill_(float("nan"))
        return result


def updated(w: Tensor, samples: Tensor) -> Tensor:
    """The weights [n] after a client's training on samples [m, n]; w stays as it is."""
    # Not of their mean alone: it must be the samples that are given.
    return torch.tanh(w) + samples.mean(0) + samples.square().mean(0)


@dataclass(frozen=True, slots=True)
class RoundReply(DriverReply):
    """A round of federated averaging on a rank: what was returned, the weights that its `Client` was given,
    and what has changed that was to stay, empty if nothing has.
    """

    returned: PlainData
    trained: list[Tensor]
    changed: str
