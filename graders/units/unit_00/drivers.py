"""Drivers of unit 00: each lets the answer work on what it is given, and returns what came of it."""

from dataclasses import dataclass

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
