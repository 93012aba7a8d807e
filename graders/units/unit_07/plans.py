"""Clusters on which an all-reduce has to be fast, and how fast the best plans are known to be."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Kind
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_07 import drivers
from graders.units.unit_07.cases import Setting, numbers
from graders.units.unit_07.drivers import DesignReply

TINY = 0.01
"""Below this ratio latencies alone count."""


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, and each rank's x [length].

    figures: nodes, GPUs a node, latency and bandwidth within a node, and between nodes.
    """

    x: list[Tensor]
    figures: tuple[int, int, float, float, float, float]

    @classmethod
    def drawn(cls, rng: Rng, nodes: int, gpus: int, nearer: float, faster: float, ratio: float) -> "Case":
        """A shape of CLEAR or CLOSE. How slow the network is, and how long the tensor, differs by a factor of
        ten: neither of them alone says which plan is the best.
        """
        latency = rng.integer(10, 40) * 1e-6
        length = gpus * nodes * rng.integer(20, 200) if ratio > TINY else 2
        bandwidth = 4 * length / (ratio * latency)
        figures = nodes, gpus, nearer * latency, faster * bandwidth, latency, bandwidth
        return cls(numbers(rng, Setting(nodes * gpus, length=length)), figures)

    @classmethod
    def odd(cls, rng: Rng, nodes: int, gpus: int, length: int) -> "Case":
        """Judged by its sum alone."""
        x = numbers(rng, Setting(nodes * gpus, length=length))
        return cls(x, (nodes, gpus, 1e-6, 2e9, 10e-6, 100e6))

    def launch(self, answer: Answer) -> Observed[DesignReply]:
        """What the answer makes of it."""
        cluster = drivers.machine(*self.figures)
        given = per_rank(self.x), self.figures
        return answer.launch(drivers.designed, *given, ranks=len(self.x), cluster=cluster)

    def right(self, run: Observed[DesignReply]) -> Finding:
        """Passes if x became the sum on every rank, and was returned."""
        expected = [torch.stack(self.x).sum(0)] * len(self.x)
        seen = [reply.argument for reply in run.results]
        right = compare.close_on_all_ranks(seen, expected, f"x afterwards, {self}", 1e-5, 1e-5)
        if right.passed and not all(reply.returned for reply in run.results):
            return Finding(False, f"something else than x itself was returned, {self}.")
        return right

    def within(self, run: Observed[DesignReply], allowed: float) -> Finding:
        """Passes if the last rank had the sum in time."""
        taken = max((event.end for event in run.events if event.kind is not Kind.SPAN), default=0.0)
        unit, known = (f"{seconds * 1e6:.1f} µs" for seconds in (self.best_of_unit(), self.best()))
        return Finding(
            taken <= allowed,
            f"{self}: it takes {taken * 1e6:.1f} µs; {allowed * 1e6:.1f} µs are allowed here (the best of "
            f"this unit {unit}, the best known {known}).",
        )

    def __str__(self) -> str:
        nodes, gpus, near, near_bandwidth, far, far_bandwidth = self.figures
        return (
            f"{self.nbytes:,} bytes on {compare.counted(nodes, 'node')} of {compare.counted(gpus, 'GPU')} "
            f"({near * 1e6:.0f} µs and {near_bandwidth / 1e6:.3g} MB/s within, "
            f"{far * 1e6:.0f} µs and {far_bandwidth / 1e6:.3g} MB/s between nodes)"
        )

    @property
    def nbytes(self) -> int:
        return self.x[0].nbytes

    def seconds(self, near: int, far: int, nbytes: float) -> float:
        """Of messages of so many bytes to `near` ranks of the node and `far` ranks of others, all at once."""
        _, _, inside, inside_bandwidth, outside, outside_bandwidth = self.figures
        latency = outside if far else inside if near else 0.0
        return latency + nbytes * (near / inside_bandwidth + far / outside_bandwidth)

    def group(self, near: int, far: int, nbytes: float) -> float:
        """Of the better all-reduce with so many others, messages at once: whole, or in parts to and fro."""
        parts = 2 * self.seconds(near, far, nbytes / (near + far + 1))
        return min(self.seconds(near, far, nbytes), parts)

    def best(self) -> float:
        """Of the best of: everyone with everyone; nodes first, each rank with its part or with all."""
        nodes, gpus = self.figures[:2]
        part = self.nbytes / gpus
        staged = 2 * self.seconds(gpus - 1, 0, part) + self.group(0, nodes - 1, part)
        whole = self.seconds(gpus - 1, 0, self.nbytes) + self.group(0, nodes - 1, self.nbytes)
        return min(self.group(gpus - 1, gpus * (nodes - 1), self.nbytes), staged, whole)

    def best_of_unit(self) -> float:
        """Seconds of the best all-reduce of the unit: ring, doubling, halving-doubling, hierarchical."""
        nodes, gpus = self.figures[:2]
        ranks, whole = nodes * gpus, self.nbytes
        ring = 2 * (ranks - 1) * self.seconds(0, 1, whole / ranks)
        far = [1 << step for step in range((nodes - 1).bit_length())]
        near = [1 << step for step in range((gpus - 1).bit_length())]
        doubling = len(far) * self.seconds(0, 1, whole) + len(near) * self.seconds(1, 0, whole)
        halving = sum(2 * self.seconds(0, 1, whole / (2 * distance)) for distance in far)
        halving += sum(2 * self.seconds(1, 0, whole / (2 * nodes * distance)) for distance in near)
        rings = 2 * (gpus - 1) * self.seconds(1, 0, whole / gpus)
        rings += 2 * (nodes - 1) * self.seconds(0, 1, whole / ranks)
        return min(ring, doubling, halving, rings)
