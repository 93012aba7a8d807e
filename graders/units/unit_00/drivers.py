"""Drivers of unit 00: each lets the answer work on what it is given, and returns what came of it."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class StatisticsReply(DriverReply):
    """result: what the answer returned on this rank. numbers: what it left of those that it got."""

    result: PlainData
    numbers: Tensor


def statistics(answer: AnswerFunction, numbers: Tensor) -> StatisticsReply:
    """What the answer says of this rank's numbers, [n]."""
    return StatisticsReply(answer(numbers), numbers)


@dataclass(frozen=True, slots=True)
class PlaceReply(DriverReply):
    """place: what the answer returned. gpus: what it left of the list that it got."""

    place: PlainData
    gpus: PlainData


def place(answer: AnswerFunction, rank: int, gpus: list[int], cyclic: bool) -> PlaceReply:
    """Where the answer puts a rank of a machine whose nodes have so many GPUs each."""
    return PlaceReply(answer(rank, gpus, cyclic), gpus)


@dataclass(frozen=True, slots=True)
class PlacesReply(DriverReply):
    """places: what the answer returned for each question."""

    places: list[PlainData]


def places(answer: AnswerFunction, questions: list[tuple[int, list[int], bool]]) -> PlacesReply:
    """Where the answer puts ranks, asked for one after another: of each the rank, the GPUs, and `cyclic`."""
    return PlacesReply([answer(rank, list(gpus), cyclic) for rank, gpus, cyclic in questions])


@dataclass(frozen=True, slots=True)
class ExchangedReply(DriverReply):
    """kept: what the answer returned, or what came where the grader stood in the ring."""

    kept: PlainData


def exchanged(answer: AnswerFunction, token: Tensor, other: Tensor | None) -> ExchangedReply:
    """A ring in which one rank, that with an `other`, is not the answer's: it keeps the token that comes, of
    token's shape and dtype, and sends this one on.
    """
    if other is None:
        return ExchangedReply(answer(token))
    rank, size = dist.get_rank(), dist.get_world_size()
    came = torch.empty_like(token)
    dist.recv(came, src=(rank - 1) % size)
    dist.send(other, dst=(rank + 1) % size)
    return ExchangedReply(came)
