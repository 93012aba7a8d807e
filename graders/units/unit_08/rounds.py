"""Rounds of federated averaging as they are drawn, and what the answer made of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.communication import MEASURED
from graders.grading.judging import feature
from graders.grading.kit import Answer, Observed, Rng, compare, per_rank
from graders.units.unit_08 import drivers
from graders.units.unit_08.clients import RoundReply

NUMBERS = 6
"""Weights of the model."""
FLOPS = 2e6


MANY, AGAIN = 30, 2
"""Rounds in which it shows who is chosen, and of these as many whose seeds come again."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """empty: so many clients have no samples. rounds: each from the same weights."""

    clients: int = feature(4, lambda clients: compare.counted(clients, "client"))
    fraction: float = feature(0.75, "fraction {}")
    rounds: int = feature(2, "{} rounds")
    empty: int = feature(0, lambda empty: f"{empty} without samples" if empty else "")


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


def drawn(rng: Rng, rounds: Rounds) -> Case:
    """Clients with different numbers of samples."""
    clients, dtype = rounds.clients, torch.float64
    counts = [rng.integer(1, 4) + 3 * (client % 2) for client in range(clients)]
    counts = [0, *[0] * rounds.empty, *counts[rounds.empty :]]
    seeds = [int(seed) for seed in rng.integers(0, 2**31, rounds.rounds)]
    again = seeds[:AGAIN] if rounds.rounds == MANY else []
    samples = [rng.normal(count, NUMBERS, dtype=dtype) for count in counts]
    return Case(rng.normal(NUMBERS, dtype=dtype), samples, rounds.fraction, [*seeds, *again])


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
