"""The grader of `design_averaging`: clusters on which a training has to be as fast as one can make it."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from course_lib.runtime.communication.costs import seconds_of
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise, per_rank
from graders.units.unit_08 import drivers
from graders.units.unit_08.problems import GRADIENT, two_levels

STEPS = 80
"""Gradients that each rank has. Half as many steps with mean gradients have the loss that is asked for."""
STIFF, SOFT, NOISE = 8, 32, 0.1
"""Numbers whose slope allows no larger steps, and those that need many; of gradients."""
SHAPES = ((2, 1, 0.09, 1, 20, 2), (2, 1, 2.5, 1, 0.3, 16), (4, 2, 1.2, 3, 0.3, 12))
"""Nodes, GPUs a node, the latency between nodes and how slow one rank is, both as multiples of a gradient,
how far the nodes' data are apart, and the best period known: steps of a fast rank between two averagings.
Long ones do not get there in the first; the best of one is more than a third too long or short for another.
"""
REACHES = "reaches the loss"
HALF = "half of what can be saved"
ONE_HALF = "at most half as long again as the best known"
THIRD = "at most a third longer than the best known"


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
    network: tuple[int, int, float, float]
    period: int

    def loss(self, w: Tensor) -> Tensor:
        """Over all ranks' data, above the least that there is. w: [..., numbers]."""
        slope, offset = self.slope.mean(0), self.offset.mean(0)
        return (slope * (w + offset / slope).square()).sum(-1) / 2

    def __str__(self) -> str:
        nodes, gpus, far, _ = self.network
        seconds = ", ".join(f"{1e3 * each:.1f}" for each in self.seconds)
        return (
            f"{compare.counted(nodes, 'node')} of {compare.counted(gpus, 'GPU')}, {1e3 * far:.2f} ms between "
            f"nodes, gradients in {seconds} ms"
        )

    @cached_property
    def known(self) -> tuple[float, float, float]:
        """The loss that is asked for; seconds to it with the mean of all gradients in each step, by one ring
        of all ranks, and with the best period known, by a ring in each node and then one between nodes.
        """
        nodes, gpus, _, _ = self.network
        cluster, nbytes, ranks = two_levels(*self.network), self.w.nbytes, len(self.seconds)
        ring = seconds_of("all_reduce", nbytes, ranks, cluster.inter_node)
        within = seconds_of("all_reduce", nbytes, gpus, cluster.intra_node)
        between = seconds_of("all_reduce", nbytes, nodes, cluster.inter_node)
        period = max(self.period * min(self.seconds), *self.seconds)
        own = [int(period / each + 1e-9) for each in self.seconds]
        plain, best = self.losses([1] * ranks), self.losses(own)
        target = 1.05 * plain[STEPS // 2]
        rounds, periods = (
            next((number for number, loss in enumerate(losses) if loss <= target), math.inf)
            for losses in (plain, best)
        )
        return target, rounds * (max(self.seconds) + ring), periods * (period + within + between)

    def losses(self, own: list[int]) -> list[float]:
        """Before the first averaging and after each, as long as there are gradients. own: each rank's steps
        between two averagings.
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


def drawn(rng: Rng, nodes: int, gpus: int, latency: float, slow: float, apart: float, period: int) -> Case:
    """A shape of SHAPES. Seconds, bytes and the learning rate have another scale each time."""
    ranks, lr, unit = nodes * gpus, rng.integer(2, 9) / 10, rng.integer(5, 20) * 1e-4
    stiff, soft = torch.linspace(1.0, 1.4, STIFF), torch.linspace(0.04, 0.12, SOFT)
    slope = torch.stack([torch.cat([stiff, soft[rng.normal(SOFT).argsort()]]) / lr for _ in range(nodes)])
    optimum = rng.normal(STIFF + SOFT)
    offset = -slope * (optimum + apart * rng.normal(nodes, STIFF + SOFT))
    w = optimum + torch.cat([rng.normal(STIFF), 4 * rng.normal(SOFT).sign()])
    noise, seconds = NOISE * rng.normal(ranks, STEPS, STIFF + SOFT), [unit] * ranks
    seconds[rng.integer(0, ranks - 1)] *= slow
    slope, offset = slope.repeat_interleave(gpus, 0), offset.repeat_interleave(gpus, 0)
    network = nodes, gpus, latency * unit, 10 * w.nbytes / (latency * unit)
    return Case(w, slope, offset, noise, lr, seconds, network, period)


def reached(answer: Answer, case: Case) -> tuple[float, Finding]:
    """When a gradient was first asked for at weights with the loss that is asked for; inf if never."""
    own = list(zip(case.slope, case.offset, case.noise, strict=True))
    given = (case.w, per_rank(own), STEPS, case.lr, case.seconds, case.network)
    cluster = two_levels(*case.network)
    run = answer.launch(drivers.designed, *given, ranks=len(own), cluster=cluster, timeout=30.0)
    at, least, (target, _, _) = math.inf, math.inf, case.known
    for rank, seen in enumerate(run.results):
        asked = sorted(event.start for event in run.events if event.rank == rank and event.op == GRADIENT)
        if seen.shape != (len(asked), *case.w.shape):
            said = f"{case}: rank {rank} has {len(asked)} spans {GRADIENT!r}, and not one for each gradient."
            return math.inf, Finding(False, said)
        losses = case.loss(seen).nan_to_num(math.inf).tolist()
        least = min([least, *losses])
        at = min([at, *(moment for moment, loss in zip(asked, losses, strict=True) if loss <= target)])
    said = f"{case}: the lowest loss at which a gradient is asked for is {least:.3f}"
    return at, Finding(at < math.inf, f"{said}; expected {target:.3f} or less.")


@exercise(
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(REACHES, 2, "No rank gets there on its own: its node has data of one kind."),
        Criterion(HALF, 2, "What do the ranks wait for here: for messages, or for one of them?"),
        Criterion(
            ONE_HALF,
            2,
            "How long do ranks train alone, if messages take four times as long as a gradient? And must a "
            "slow rank make as many steps as the others?",
            needs=(REACHES, HALF),
        ),
        Criterion(
            THIRD,
            2,
            "Reckon the seconds of a round, gradients and messages; and let a long latency be waited for by "
            "as few messages in a row as you can.",
            needs=(REACHES, ONE_HALF),
        ),
    ),
    hints=(
        "Which scheme of this unit sends least often? What does it lose, and from which period on?",
        "A round takes as long as its slowest rank. What if the period is one of time, not of steps?",
        "With GPUs of one node close together, what need to wait for the network between nodes?",
    ),
)
def design_averaging(answer: Answer, rng: Rng) -> Findings:
    """Clusters where messages are cheap, or dear, with and without a slow rank."""
    cases = [drawn(rng, *shape) for shape in SHAPES]
    moments, found = zip(*(reached(answer, case) for case in cases), strict=True)
    yield REACHES, compare.first_failure(found)
    for name, times in ((HALF, 1.25), (ONE_HALF, 1.5), (THIRD, 4 / 3)):
        judged = zip(cases, moments, strict=True)
        yield name, compare.first_failure(within(case, at, times, name == HALF) for case, at in judged)


def within(case: Case, at: float, times: float, half: bool) -> Finding:
    """Passes if it took at most so many times the best seconds, or saved half of what can be saved."""
    _, plain, best = case.known
    allowed = max(times * best, (plain + best) / 2 if half else 0.0)
    took, limit, slow, fast = (f"{1e3 * each:.1f} ms" for each in (at, allowed, plain, best))
    said = (
        f"{case}: the loss is reached after {took}; {limit} are allowed here (the mean of all gradients in "
    )
    return Finding(at <= allowed, f"{said}each step takes {slow}, the best known {fast}).")
