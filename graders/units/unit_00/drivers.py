"""Drivers of unit 00: each lets the answer work on what it is given, and returns what came of it."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class ExchangedReply(DriverReply):
    """kept: what the answer returned, or what came where the grader stood in the ring."""

    kept: PlainData


def exchanged(answer: AnswerFunction, token: Tensor, stands: bool, other: Tensor | None) -> ExchangedReply:
    """A ring in which one rank, the one that `stands`, is not the answer's: it keeps the token that comes, of
    token's shape and dtype, and sends `other` on, or if there is none what has come and its own rank.
    """
    if not stands:
        return ExchangedReply(answer(token))
    rank, size = dist.get_rank(), dist.get_world_size()
    came = torch.empty_like(token)
    dist.recv(came, src=(rank - 1) % size)
    dist.send(came + rank if other is None else other, dst=(rank + 1) % size)
    return ExchangedReply(came)
