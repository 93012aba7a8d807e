"""Unit 08, rounds of federated averaging as they are drawn, and what the answer made of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.communication import MEASURED
from graders.grading.kit import Answer, Observed, Rng, compare, per_rank
from graders.units.unit_08 import drivers
from graders.units.unit_08.clients import RoundReply

NUMBERS = 6
"""Weights of the model."""
FLOPS = 2e6


@dataclass(frozen=True, slots=True)
class Case:
    """w: [n] on rank 0. samples[r]: [m, n], rank 0 has none. seeds: of the rounds."""

    w: Tensor
    samples: list[Tensor]
    fraction: float
    seeds: list[int]

    @property
    def clients(self) -> int:
        return len(self.samples) - 1

    @property
    def chosen(self) -> int:
        """How many are."""
        return max(1, round(self.fraction * self.clients))


@dataclass(frozen=True, slots=True)
class Held:
    """A case's rounds, held by the answer. by_round[i][r]: what rank r told of round i."""

    case: Case
    run: Observed[list[RoundReply]]
    by_round: list[tuple[RoundReply, ...]]

    def talked(self, number: int) -> list[int]:
        """The clients that are chosen in a round: who sends; who trains, if the answer sends no messages."""
        clients = list(enumerate(self.by_round[number]))[1:]
        sending = [rank for rank, reply in clients if "send" in reply.calls]
        return sending or [rank for rank, reply in clients if reply.trained]

    def __str__(self) -> str:
        return f"with {compare.counted(self.case.clients, 'client')} and fraction {self.case.fraction}"


def drawn(
    rng: Rng,
    clients: int,
    fraction: float,
    rounds: int = 2,
    again: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Clients with different numbers of samples. again: so many of the rounds' seeds come once more."""
    counts = [0, *(rng.integer(1, 4) + 3 * (client % 2) for client in range(clients))]
    seeds = [int(seed) for seed in rng.integers(0, 2**31, rounds)]
    samples = [rng.normal(count, NUMBERS, dtype=dtype) for count in counts]
    return Case(rng.normal(NUMBERS, dtype=dtype), samples, fraction, [*seeds, *seeds[:again]])


def without_samples(rng: Rng, everyone: bool) -> Case:
    """All clients are chosen, and the first, or everyone, has no sample."""
    case = drawn(rng, 3, 1.0)
    samples = [each[:0] if everyone or rank < 2 else each for rank, each in enumerate(case.samples)]
    return Case(case.w, samples, case.fraction, case.seeds)


def hold(answer: Answer, case: Case) -> Held:
    """The case's rounds, each from the same weights. Clients get other weights than the server, of no use."""
    ranks = len(case.samples)
    weights = [case.w, *(torch.full_like(case.w, 1e6 * rank) for rank in range(1, ranks))]
    cluster = Cluster(nodes=ranks, inter_node=MEASURED, flops=FLOPS)
    given = (per_rank(weights), per_rank(case.samples), case.fraction, case.seeds)
    run = answer.launch(drivers.federated_round, *given, ranks=ranks, cluster=cluster)
    by_round = [
        tuple(told for told, _ in compare.side_by_side(rounds, run.results))
        for rounds, _ in compare.side_by_side(list(zip(*run.results, strict=False)), case.seeds)
    ]
    return Held(case, run, by_round)
