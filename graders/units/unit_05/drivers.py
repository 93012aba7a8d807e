"""Drivers of unit 05: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.models import gradients_of
from graders.units.unit_05.pieces import piece_of


@dataclass(frozen=True, slots=True)
class ExampleReply(DriverReply):
    """result: what the answer returned on this rank. x: its argument [n] afterwards."""

    result: PlainData
    x: Tensor


def example(answer: AnswerFunction, x: Tensor) -> ExampleReply:
    """What the answer makes of x [n]."""
    return ExampleReply(answer(x), x)


@dataclass(frozen=True, slots=True)
class CutReply(DriverReply):
    """result: the cut. costs: as the answer left them."""

    result: PlainData
    costs: PlainData


def cut(answer: AnswerFunction, costs: list[float], stages: int) -> CutReply:
    """How the answer cuts layers of these costs into stages."""
    return CutReply(answer(costs, stages), costs)


@dataclass(frozen=True, slots=True)
class ByHandReply(DriverReply):
    """What calls of the answer left on one rank.

    losses: what each call returned. attached: whether one of them still has its graph. gradients: of the
    stage's parameters, None where there is none. kept: whether every x is as it was, and asks for no
    gradient.
    """

    losses: list[PlainData]
    attached: bool
    gradients: list[Tensor | None]
    kept: bool


def by_hand(
    answer: AnswerFunction,
    values: list[Tensor],
    turned: bool,
    frozen: bool,
    xs: list[Tensor],
    targets: list[Tensor | None],
) -> ByHandReply:
    """Forward and backward of this rank's piece, once for every target; see `piece_of` for the first three.

    xs: one for each target, or one for all.
    """
    piece = piece_of(values, turned, frozen)
    before = [x.clone() for x in xs]
    losses = [answer(piece, xs[number % len(xs)], target, mse_loss) for number, target in enumerate(targets)]
    kept = all(
        torch.equal(x, old) and not x.requires_grad and x.grad is None
        for x, old in zip(xs, before, strict=True)
    )
    tensors = [loss for loss in losses if isinstance(loss, Tensor)]
    told = [loss.detach() if isinstance(loss, Tensor) else loss for loss in losses]
    return ByHandReply(told, any(loss.requires_grad for loss in tensors), gradients_of(piece), kept)
