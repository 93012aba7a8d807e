"""What the driver of `federated_round` gives clients to do, and what it tells of a round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.answer import DriverReply, PlainData

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
