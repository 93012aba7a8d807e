"""Drivers of unit 08: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.unit_08.problems import Batches, Gradients

# --- Parameter servers, and those who wait for nobody


@dataclass(frozen=True, slots=True)
class PlacementReply(DriverReply):
    """result: what the answer returned. sizes: afterwards."""

    result: PlainData
    sizes: PlainData


def placement(answer: AnswerFunction, sizes: list[int], servers: int) -> PlacementReply:
    """Where the answer puts the pieces of tensors of these sizes."""
    return PlacementReply(answer(sizes, servers), sizes)


@dataclass(frozen=True, slots=True)
class TrainedReply(DriverReply):
    """What one call of a training did on one rank.

    result: what it returned. w: its argument afterwards. seen: the weights at which it asked for a gradient,
    one by one. given: what it was given.
    """

    result: PlainData
    w: Tensor
    seen: list[Tensor]
    given: list[Tensor]


def trained(
    answer: AnswerFunction, cases: list[tuple[Tensor, Batches, list[PlainData]]]
) -> list[TrainedReply]:
    """Trainings, one after another: of each this rank's weights, its batches, and the other arguments."""
    replies = []
    for w, batches, arguments in cases:
        gradients = Gradients(batches)
        result = answer(w, gradients, *arguments)
        replies.append(TrainedReply(result, w, gradients.seen, gradients.given))
    return replies
