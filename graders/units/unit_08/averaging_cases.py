"""Clusters on which a training has to be as fast as one can make it."""

import math
from dataclasses import dataclass
from functools import cached_property
from operator import mul

import torch
from torch import Tensor

from course_lib.runtime.communication.costs import seconds_of
from graders.grading.kit import Answer, Observed, Rng, compare, per_rank
from graders.units.unit_08 import drivers
from graders.units.unit_08.problems import two_levels
from graders.units.unit_08.replies import DesignReply

STEPS = 80
"""Gradients that each rank has."""
REACHED = STEPS // 2
"""After how many of them mean gradients, averaged in each step, have the loss that is asked for."""
STIFF, SOFT, NOISE = 8, 32, 0.1
"""Numbers whose slope allows no larger steps, and those that need many; of gradients."""
SHAPES = ((2, 1, 0.01, 1, 20), (2, 1, 2.5, 1, 0.3), (4, 2, 1.2, 3, 0.3))
"""Nodes, GPUs a node, the latency between nodes and how slow one rank is, both as multiples of a gradient,
and how far the nodes' data are apart. Too long periods do not get there in the first; the best period of one
is more than a third too long, or too short, for another.
"""

PERIODS = (2, 4, 6, 8, 12, 16)
"""Steps of a fast rank between two averagings, of which the best known is chosen."""


@dataclass(frozen=True)
class Case:
    """slope, offset: of each rank's gradients [ranks, numbers], slope * w + offset + noise.

    w: [numbers] to begin with. noise: [ranks, STEPS, numbers]. seconds: of each rank's gradients. network:
    see `two_levels`.
    """

    w: Tensor
    slope: Tensor
    offset: Tensor
    noise: Tensor
    lr: float
    seconds: list[float]
    network: tuple[int, int, float, float, float, float]

    @classmethod
    def drawn(cls, rng: Rng, nodes: int, gpus: int, latency: float, slow: float, apart: float) -> "Case":
        """A shape of SHAPES. Seconds, bytes and the learning rate have another scale each time."""
        ranks, lr, unit = nodes * gpus, rng.integer(2, 9) / 10, rng.integer(5, 20) * 1e-4
        stiff, soft = torch.linspace(1.0, 1.4, STIFF), torch.linspace(0.04, 0.12, SOFT)
        slopes = [torch.cat([stiff, soft[rng.normal(SOFT).argsort()]]) / lr for _ in range(nodes)]
        optimum = rng.normal(STIFF + SOFT)
        offsets = [-slope * (optimum + apart * rng.normal(STIFF + SOFT)) for slope in slopes]
        away = torch.cat([rng.normal(STIFF), 4 * rng.normal(SOFT).sign()])
        seconds = [unit] * ranks
        seconds[rng.integer(0, ranks - 1)] *= slow
        far, nbytes = latency * unit, away.nbytes
        return cls(
            optimum + away,
            torch.stack(slopes).repeat_interleave(gpus, 0),
            torch.stack(offsets).repeat_interleave(gpus, 0),
            NOISE * rng.normal(ranks, STEPS, STIFF + SOFT),
            lr,
            seconds,
            (nodes, gpus, far / 10, 100 * nbytes / far, far, 10 * nbytes / far),
        )

    def launch(self, answer: Answer) -> Observed[DesignReply]:
        """The answer's training, with every rank's gradients."""
        own = list(zip(self.slope, self.offset, self.noise, strict=True))
        given = (self.w, per_rank(own), STEPS, self.lr, self.seconds, self.network)
        cluster = two_levels(*self.network)
        return answer.launch(drivers.designed, *given, ranks=len(self.seconds), cluster=cluster, timeout=30.0)

    def loss(self, w: Tensor) -> Tensor:
        """Over all ranks' data, above the least that there is. w: [..., numbers]."""
        slope, offset = self.slope.mean(0), self.offset.mean(0)
        return (slope * (w + offset / slope).square()).sum(-1) / 2

    def __str__(self) -> str:
        nodes, gpus, _, _, far, _ = self.network
        least, most = min(self.seconds), max(self.seconds)
        slow = (
            "all"
            if least == most
            else f"all but rank {self.seconds.index(most)}, which takes {1e3 * most:.1f} ms"
        )
        return (
            f"{compare.counted(nodes, 'node')} of {compare.counted(gpus, 'GPU')}, {1e3 * far:.2f} ms between "
            f"nodes, a gradient in {1e3 * least:.1f} ms on {slow}"
        )

    @cached_property
    def target(self) -> float:
        """A twentieth above the loss that mean gradients have after REACHED steps."""
        return 1.05 * self._losses([1] * len(self.seconds))[REACHED]

    @cached_property
    def plain(self) -> float:
        """Seconds with the mean of all gradients in each step, by one all-reduce of all ranks."""
        each = max(self.seconds) + self.all_reduce(by_level=False)
        return each * self._rounds([1] * len(self.seconds))

    @cached_property
    def best(self) -> float:
        """Seconds of the best of some periods of time, in which each rank makes the steps that fit in."""
        talking = min(self.all_reduce(by_level) for by_level in (False, True))
        found: list[float] = []
        for period in PERIODS:
            lasts = max(period * min(self.seconds), max(self.seconds))
            own = [int(lasts / each + 1e-9) for each in self.seconds]
            found.append((max(map(mul, own, self.seconds)) + talking) * self._rounds(own))
        return min(found)

    def _rounds(self, own: list[int]) -> float:
        """How many are needed with so many steps of each rank in each; inf if STEPS are too few."""
        losses = enumerate(self._losses(own))
        return next((number for number, loss in losses if loss <= self.target), math.inf)

    def _losses(self, own: list[int]) -> list[float]:
        """Before the first round and after each of them, as long as there are gradients. own: each rank's
        steps in a round.
        """
        steps, ranks = torch.tensor(own), torch.arange(len(own))
        kept, added = 1 - self.lr * self.slope, -self.lr * (self.offset[:, None] + self.noise)
        each, found = self.w.expand(len(own), -1), [float(self.loss(self.w))]
        for number in range(STEPS // max(own)):
            for step in range(max(own)):
                moved = torch.addcmul(added[ranks, number * steps + step % steps], kept, each)
                each = torch.where((step < steps)[:, None], moved, each)
            each = each.mean(0).expand(len(own), -1)
            found.append(float(self.loss(each[0])))
        return found

    def all_reduce(self, by_level: bool) -> float:
        """Seconds of a ring of everyone, or of one within each node and then one between nodes."""
        cluster, nbytes = two_levels(*self.network), self.w.nbytes
        gpus, nodes, near = cluster.devices_per_node, cluster.nodes, cluster.intra_node
        if by_level:
            within = seconds_of("all_reduce", nbytes, gpus, near)
            return within + seconds_of("all_reduce", nbytes, nodes, cluster.inter_node)
        return seconds_of("all_reduce", nbytes, gpus * nodes, cluster.inter_node)
