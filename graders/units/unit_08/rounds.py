"""Rounds of federated averaging, as they are drawn."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Observed, compare
from graders.units.unit_08.clients import RoundReply


@dataclass(frozen=True, slots=True)
class Rounds:
    """empty: so many clients have no samples. rounds: each from the same weights."""

    clients: int = feature(4, lambda clients: compare.counted(clients, "client"))
    fraction: float = feature(0.75, "fraction {}")
    rounds: int = feature(2, "{} rounds")
    empty: int = feature(0, lambda empty: f"{empty} without samples" if empty else "")

    @property
    def due(self) -> int:
        """How many clients are chosen."""
        return max(1, round(self.fraction * self.clients))


@dataclass(frozen=True, slots=True)
class Held:
    """w: [n] on rank 0. samples[r]: [m, n], rank 0 has none. by_round[i][r]: what rank r told of round i."""

    w: Tensor
    samples: list[Tensor]
    run: Observed[list[RoundReply]]
    by_round: list[list[RoundReply]]
    everyone: bool

    def chosen(self, number: int) -> list[int]:
        """The clients that train in a round, and those without samples where all are chosen."""
        ranks = range(1, len(self.samples))
        return [rank for rank in ranks if self.everyone or self.by_round[number][rank].trained]
