"""What the driver of a federated round gives its clients to do, and what it watches and tells."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from graders.grading.answer import DriverReply, PlainData

SIDE = 100
"""Side of the square matrices that a client multiplies, so that its training takes virtual time."""


@dataclass(frozen=True, slots=True)
class RoundReply(DriverReply):
    """One round on one rank.

    returned: by the answer. trained: the weights [n] that each call of client_update was given. kept: whether
    w and the samples are what they were, and w is not what was returned. random: the libraries whose random
    state has changed. calls: the communication calls that were made, by name. sent: the tensors [any] that
    these were given.
    """

    returned: PlainData
    trained: list[Tensor]
    kept: bool
    random: list[str]
    calls: list[str]
    sent: list[Tensor]


def updated(w: Tensor, samples: Tensor) -> Tensor:
    """The weights [n] after a client's training on samples [m, n], some of them 0; w stays as it is."""
    # Not of their mean alone: it must be the samples that are given.
    result = torch.tanh(w) + samples.mean(0) + samples.square().mean(0)
    result[[0, 1, -1]] = 0
    return result


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


def what_is_said() -> tuple[list[str], list[Tensor]]:
    """Two lists that get each call of this rank from now on, and a copy of each tensor that it is given."""
    calls: list[str] = []
    sent: list[Tensor] = []
    group: Any = dist.group.WORLD
    carry_out = group.carry_out

    def noted(call: Any, peer: Any, inputs: Any, *rest: Any) -> Any:
        calls.append(call.op)
        sent.extend(each.detach().clone().flatten() for each in inputs)
        return carry_out(call, peer, inputs, *rest)

    group.carry_out = noted
    return calls, sent
