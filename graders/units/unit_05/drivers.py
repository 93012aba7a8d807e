"""Drivers of unit 05: they run beside the student's code, which could read an expected value here."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.training.pipeline.actions import COMPUTING, Action
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of, gradients_of
from graders.units.ranks.drivers import call_once
from graders.units.unit_05.pieces import Descent, HeldBytes, Piece, Twice, lopsided_loss
from graders.units.unit_05.replies import PlanReply, StashReply, UnknownReply


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


def plain_action(action: object) -> PlainData:
    """Kind, micro-batch and chunk of an action; of anything else a few words."""
    if isinstance(action, Action):
        return [type(action).__name__, action.micro_batch, action.chunk]
    return repr(action)[:80]


def actions_from(plain: list[PlainData]) -> list[Action]:
    """The actions of which `plain_action` would make this."""
    return [_KINDS[kind](micro_batch, chunk) for kind, micro_batch, chunk in plain]


_KINDS = {kind.__name__: kind for kind in COMPUTING}


def schedules(answer: AnswerFunction, cases: list[list[int]]) -> list[list[list[PlainData]]]:
    """For each case, stages and what else the answer is told, each stage's actions."""
    return [
        [[plain_action(action) for action in answer(stage, *case)] for stage in range(case[0])]
        for case in cases
    ]


def of_actions(answer: AnswerFunction, calls: list[list[PlainData]]) -> list[Called]:
    """What calls with these lists of actions, one after the other, leave behind."""
    earlier: list[Any] = []
    told = [call_once(answer, [*map(actions_from, given)], {}, "contiguous", earlier) for given in calls]
    return [
        replace(each, result=_plain(each.result), arguments=[*map(_plain, each.arguments)]) for each in told
    ]


def _plain(value: Any) -> PlainData:
    if isinstance(value, list):
        return [plain_action(action) for action in value]
    return value if isinstance(value, int) else repr(value)[:80]


def planned(
    answer: AnswerFunction, seconds: list[list[float]], micro_batches: int, memory: list[int]
) -> PlanReply:
    """The answer's schedule, stage by stage."""
    given = [(forward, first, second) for forward, first, second in seconds]
    stages = answer(given, micro_batches, memory)
    listed = [[plain_action(action) for action in actions] for actions in stages]
    return PlanReply(listed, [*map(list, given)], memory)


def stash(
    answer: AnswerFunction,
    values: list[Tensor],
    frozen: bool,
    options: list[float],
    actions: list[tuple[str, int, Tensor]],
) -> StashReply:
    """Have a stash of a `Twice` with these values do the actions, each ("forward", batch, x [B, I]) or
    ("backward", batch, gradient [B, O]). options: of `Descent`.
    """
    stage = Twice(values, frozen)
    trained = [parameter for parameter in stage.parameters() if parameter.requires_grad]
    stashed = answer(stage, Descent(trained, *options))
    told: list[PlainData] = []
    versions, held, attached, kept = [], [], False, True
    with HeldBytes(stage.parameters()) as memory:
        for kind, batch, tensor in actions:
            given = tensor.clone()
            result = getattr(stashed, kind)(batch, given)
            kept = kept and torch.equal(given, tensor) and not given.requires_grad
            attached = attached or (isinstance(result, Tensor) and result.requires_grad)
            # As a list, so that it is not counted among the tensors.
            told.append(result.detach().tolist() if isinstance(result, Tensor) else None)
            del result, given
            versions.append(stashed.versions)
            gradients = [p.grad for p in stage.parameters() if p.grad is not None]
            held.append(memory.count() - sum(each.untyped_storage().nbytes() for each in gradients))
            del gradients
    asking = [parameter.requires_grad for parameter in stage.parameters()]
    return StashReply(
        [None if one is None else torch.tensor(one) for one in told],
        attached,
        kept,
        versions,
        held,
        copies_of(stage.parameters()),
        asking,
        [p.grad is not None for p in stage.parameters() if all(p is not other for other in trained)],
    )


def unknown_batch(answer: AnswerFunction, values: list[Tensor], order: list[int]) -> UnknownReply:
    """What backwards of these batches do, after the forward of batch 0."""
    stage = Twice(values, False)
    stashed = answer(stage, Descent(list(stage.parameters()), 0.1, decay=0.1))
    width, out = values[0].shape[0], values[1].shape[1]
    stashed.forward(0, torch.ones(1, width))
    raised, changed = [], False
    for batch in order:
        before = copies_of(stage.parameters())
        try:
            stashed.backward(batch, torch.ones(1, out))
            raised.append("")
        except Exception as error:
            raised.append(type(error).__name__)
            changed = changed or not all(map(torch.equal, before, stage.parameters()))
    return UnknownReply(raised, changed)
