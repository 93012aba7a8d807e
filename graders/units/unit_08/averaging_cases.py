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


SHAPES = (
    (2, 2, 0.01, 1, 20),
    (4, 2, 0.7, 1, 0.3),
    (3, 1, 2.5, 1, 0.3),
    (2, 4, 0.01, 5, 0.3),
    (3, 2, 0.5, 3, 0.3),
)
"""Nodes, GPUs a node, the latency between nodes and how slow one rank is, both as multiples of a gradient,
and how far the nodes' data are apart. Too long periods do not get there in the first; the best period of one
is more than a third too long, or too short, for another.
"""

PERIODS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
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
        return 1.05 * float(self._losses[REACHED, 0])

    @cached_property
    def plain(self) -> float:
        """Seconds with the mean of all gradients in each step, by one all-reduce of all ranks."""
        each = max(self.seconds) + self.all_reduce(by_level=False)
        return each * self._rounds[0]

    @cached_property
    def best(self) -> float:
        """Seconds of the best of some periods of time, in which each rank makes the steps that fit in."""
        talking = min(self.all_reduce(by_level) for by_level in (False, True))
        computing: list[float] = [max(map(mul, own, self.seconds)) for own in self._timed]
        return min(
            (each + talking) * rounds for each, rounds in zip(computing, self._rounds[1:], strict=True)
        )

    @cached_property
    def _timed(self) -> list[list[int]]:
        """For each of the periods, how many steps each rank makes in it."""
        lasts = [max(period * min(self.seconds), max(self.seconds)) for period in PERIODS]
        return [[int(each / own + 1e-9) for own in self.seconds] for each in lasts]

    @cached_property
    def _rounds(self) -> list[float]:
        """How many are needed with one step on each rank, and with each of the periods; inf if STEPS are too
        few.
        """
        low = self._losses <= self.target
        return [float(each.long().argmax()) if each.any() else math.inf for each in low.T]

    @cached_property
    def _losses(self) -> Tensor:
        """Before the first round and after each of them [1 + STEPS, ways], as long as there are gradients;
        inf from then on. A way is how many steps each rank makes in a round: one, or those of a period.
        """
        own = torch.tensor([[1] * len(self.seconds), *self._timed])
        lasts, ranks, made = own.amax(1), torch.arange(own.shape[1]), torch.arange(STEPS)[:, None]
        number, step = made.div(lasts, rounding_mode="floor"), made.remainder(lasts)
        ends = step == lasts - 1
        # All ways go on together, gradient by gradient: a step is w * kept + added, [ways, ranks, numbers].
        steps = (step[..., None] < own)[..., None] * self.lr
        noise = self.noise[ranks, number[..., None] * own + step[..., None].remainder(own)]
        kept, added = 1 - steps * self.slope, -steps * (self.offset + noise)
        each, means = self.w.expand(*own.shape, -1), []
        for on, more, now in zip(kept, added, ends, strict=True):
            each = torch.addcmul(more, each, on)
            means.append(each.mean(1))
            each = torch.where(now[:, None, None], means[-1][:, None], each)
        found = torch.full((1 + STEPS, len(own)), math.inf)
        found[0] = self.loss(self.w)
        at, way = ends.nonzero(as_tuple=True)
        found[1 + number[at, way], way] = self.loss(torch.stack(means)[at, way])
        return found

    def all_reduce(self, by_level: bool) -> float:
        """Seconds of a ring of everyone, or of one within each node and then one between nodes."""
        cluster, nbytes = two_levels(*self.network), self.w.nbytes
        gpus, nodes, near = cluster.devices_per_node, cluster.nodes, cluster.intra_node
        if by_level:
            within = seconds_of("all_reduce", nbytes, gpus, near)
            return within + seconds_of("all_reduce", nbytes, nodes, cluster.inter_node)
        return seconds_of("all_reduce", nbytes, gpus * nodes, cluster.inter_node)
