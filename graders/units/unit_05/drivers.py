"""Drivers of unit 05: they run beside the student's code, which could read an expected value here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.training.pipeline.actions import COMPUTING, Action
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of, floating_bytes, gradients_of
from graders.units.optimizers import PlainSGD
from graders.units.ranks.drivers import call_once
from graders.units.unit_05.pieces import Piece, lopsided_loss, twice


def by_hand(
    answer: AnswerFunction,
    cases: list[list[PlainData]],
    options: list[dict[str, PlainData]],
    layouts: list[str],
    members: list[list[int] | None],
    meet: list[bool],
) -> list[Called]:
    """Forward and backward of this rank's pieces, one case after the other; see `calls` of ranks/drivers.py.

    cases: of each what `Piece` takes, xs (one for each target, or one for all), targets, the piece's mode,
    the share, of which the answer is told if it is not 1. result: losses, whether one of them still has its
    graph, and gradients, None where there is none. arguments: the xs, and the mode of each time that the
    piece has computed, and its own.
    """
    told = []
    for (stage, xs, targets, training, share), together in zip(cases, meet, strict=True):
        if together:
            dist.barrier()
        piece = Piece(*stage).train(training)
        if piece.turned:
            xs = [x.mT.contiguous().mT for x in xs]
        shares = [] if share == 1 else [share]
        losses = [
            answer(piece, xs[number % len(xs)], target, lopsided_loss, *shares)
            for number, target in enumerate(targets)
        ]
        attached = any(loss.requires_grad for loss in losses if isinstance(loss, Tensor))
        left = [
            x.detach() if x.grad is None and not x.requires_grad else "a tensor that asks for a gradient"
            for x in xs
        ]
        result = [
            [loss.detach() if isinstance(loss, Tensor) else loss for loss in losses],
            attached,
            gradients_of(piece),
        ]
        told.append(Called(result, None, [left, [*piece.modes, piece.training]]))
    return told


# --- Schedules

KINDS = {kind.__name__: kind for kind in COMPUTING}


def plain_action(action: object) -> PlainData:
    """Kind, micro-batch and chunk of an action; of anything else a few words."""
    if isinstance(action, Action):
        return [type(action).__name__, action.micro_batch, action.chunk]
    return repr(action)[:80]


def action_of(plain: Any) -> Any:
    """The action that `plain_action` made plain; anything else as it is."""
    if type(plain) is not list or [type(part) for part in plain] != [str, int, int]:
        return plain
    kind, *where = plain
    return KINDS[kind](*where) if kind in KINDS else plain


def of_each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A list with each of its items changed; anything else as it is."""
    return [change(item) for item in value] if isinstance(value, list) else value


def schedules(answer: AnswerFunction, cases: list[list[int]]) -> list[list[list[PlainData]]]:
    """For each case, stages and what else the answer is told, each stage's actions."""
    return [
        [[plain_action(action) for action in answer(stage, *case)] for stage in range(case[0])]
        for case in cases
    ]


def of_actions(answer: AnswerFunction, calls: list[list[PlainData]]) -> list[Called]:
    """What calls with these lists of actions, one after the other, leave behind."""
    earlier: list[Any] = []
    told = []
    for given in calls:
        called = call_once(answer, [of_each(each, action_of) for each in given], {}, "contiguous", earlier)
        left = [of_each(each, plain_action) for each in called.arguments]
        told.append(replace(called, result=of_each(called.result, plain_action), arguments=left))
    return told


def planned(
    answer: AnswerFunction, seconds: list[tuple[float, float, float]], micro_batches: int, memory: list[int]
) -> list[list[PlainData]]:
    """The answer's schedule, stage by stage."""
    return [[*map(plain_action, actions)] for actions in answer(seconds, micro_batches, memory)]


@dataclass(frozen=True, slots=True)
class StashReply(DriverReply):
    """What a stash did, action by action.

    told: of a forward the output, of a backward the gradient of its input. attached: whether one of them
    still has its graph. versions: what the stash said after each action. held: bytes of all tensors that it
    keeps then, the stage's parameters among them. weights: the stage's, in the end.
    """

    told: list[PlainData]
    attached: bool
    versions: list[PlainData]
    held: list[int]
    weights: list[Tensor]


def stash(
    answer: AnswerFunction,
    values: list[Tensor],
    frozen: bool,
    options: list[float],
    actions: list[tuple[str, int, Tensor]],
) -> StashReply:
    """Have a stash of `twice` with these values do the actions, each ("forward", batch, x [B, I]) or
    ("backward", batch, gradient [B, O]). options: of `PlainSGD`.
    """
    stage = twice(values, frozen)
    trained = [parameter for parameter in stage.parameters() if parameter.requires_grad]
    stashed = answer(stage, PlainSGD(trained, *options))
    everything = torch.nn.Module()
    vars(everything)["kept"] = vars(stashed)
    reply = StashReply([], False, [], [], [])
    attached = False
    for kind, batch, tensor in actions:
        result = getattr(stashed, kind)(batch, tensor)
        attached = attached or (isinstance(result, Tensor) and result.requires_grad)
        reply.told.append(result.detach().clone() if isinstance(result, Tensor) else None)
        reply.versions.append(stashed.versions)
        reply.held.append(floating_bytes(everything))
    return replace(reply, attached=attached, weights=copies_of(stage.parameters()))
