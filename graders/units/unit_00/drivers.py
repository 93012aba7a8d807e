"""Drivers of unit 00: each lets the answer work on what it is given, and returns what came of it."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from course_lib.runtime.simulator.works import as_on_gloo
from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class StatisticsReply(DriverReply):
    """result: what the answer returned on this rank. numbers: what it left of those that it got. groups: how
    many groups it has made.
    """

    result: PlainData
    numbers: Tensor
    groups: int


def statistics(answer: AnswerFunction, numbers: Tensor, earlier: Tensor | None) -> StatisticsReply:
    """What the answer says of this rank's numbers, [n]; where there are earlier ones, after it was asked
    about those.
    """
    before = _groups()
    if earlier is not None:
        answer(earlier)
    return StatisticsReply(answer(numbers), numbers, _groups() - before)


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
class PassedReply(DriverReply):
    """token: what the answer returned. groups: how many groups it has made."""

    token: PlainData
    groups: int


def passed(answer: AnswerFunction, token: Tensor) -> PassedReply:
    """The token as the answer returns it, where a message is over when it has been waited for, as on Gloo."""
    as_on_gloo.set(True)
    before = _groups()
    return PassedReply(answer(token), _groups() - before)


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


def _groups() -> int:
    """How many process groups this rank knows."""
    return len(distributed_c10d._world.pg_map)
