"""Rounds of federated averaging, what the driver gives clients to do, and what it tells of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.answer import DriverReply, PlainData
from graders.grading.judging import feature
from graders.grading.kit import Observed, compare

SIDE = 100
"""Side of the square matrices that a client multiplies, so that its training takes virtual time."""


@dataclass(frozen=True, slots=True)
class RoundReply(DriverReply):
    """One round on one rank.

    returned: by the answer. trained: the weights [n] that each call of client_update was given. kept: whether
    w and the samples are what they were, and w is not what was returned. random: the libraries whose random
    state has changed.
    """

    returned: PlainData
    trained: list[Tensor]
    kept: bool
    random: list[str]


def updated(w: Tensor, samples: Tensor) -> Tensor:
    """The weights [n] after a client's training on samples [m, n]; w stays as it is."""
    # Not of their mean alone: it must be the samples that are given.
    return torch.tanh(w) + samples.mean(0) + samples.square().mean(0)


class Client:
    """The `client_update` of a rank."""

    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def __call__(self, w: Tensor, samples: Tensor) -> Tensor:
        """As `updated`, and works in w, which it may."""
        self.given.append(w.clone())
        torch.mm(torch.zeros(SIDE, SIDE), torch.zeros(SIDE, SIDE))
        result = updated(w, samples)
        w.fill_(float("nan"))
        return result


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
