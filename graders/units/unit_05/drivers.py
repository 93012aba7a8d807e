"""Drivers of unit 05: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.training.pipeline.actions import COMPUTING, Action
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.models import copies_of, gradients_of
from graders.units.unit_05.pieces import Descent, HeldBytes, Piece, Twice, lopsided_loss


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
    gradient. forwards: how often the stage has computed, in training mode. training: if it still is.
    """

    losses: list[PlainData]
    attached: bool
    gradients: list[Tensor | None]
    kept: bool
    forwards: int
    training: bool


def by_hand(
    answer: AnswerFunction,
    stage: tuple[list[Tensor], bool, bool, list[str]],
    xs: list[Tensor],
    targets: list[Tensor | None],
) -> ByHandReply:
    """Forward and backward of this rank's piece, once for every target; stage: what `Piece` takes.

    xs: one for each target, or one for all.
    """
    piece = Piece(*stage)
    before = [x.clone() for x in xs]
    losses = [
        answer(piece, xs[number % len(xs)], target, lopsided_loss) for number, target in enumerate(targets)
    ]
    kept = all(
        torch.equal(x, old) and not x.requires_grad and x.grad is None
        for x, old in zip(xs, before, strict=True)
    )
    tensors = [loss for loss in losses if isinstance(loss, Tensor)]
    told = [loss.detach() if isinstance(loss, Tensor) else loss for loss in losses]
    attached = any(loss.requires_grad for loss in tensors)
    return ByHandReply(told, attached, gradients_of(piece), kept, piece.forwards, piece.training)


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


@dataclass(frozen=True, slots=True)
class FractionReply(DriverReply):
    """result: what the answer returned. arguments: afterwards."""

    result: PlainData
    arguments: PlainData


def fractions(answer: AnswerFunction, cases: list[list[PlainData]]) -> list[FractionReply]:
    """What the answer makes of each list of arguments."""
    return [FractionReply(answer(*arguments), arguments) for arguments in cases]


@dataclass(frozen=True, slots=True)
class PeakReply(DriverReply):
    """result: what the answer returned. left: the actions afterwards."""

    result: PlainData
    left: list[PlainData]


def peaks(answer: AnswerFunction, cases: list[list[PlainData]]) -> list[PeakReply]:
    """What the answer makes of each list of actions."""
    lists = [actions_from(case) for case in cases]
    return [PeakReply(answer(actions), [*map(plain_action, actions)]) for actions in lists]


@dataclass(frozen=True, slots=True)
class RecomputedReply(DriverReply):
    """result: the actions that came out. left: those that went in, afterwards. new: if it is another list."""

    result: list[PlainData]
    left: list[PlainData]
    new: bool


def recomputed(answer: AnswerFunction, cases: list[list[PlainData]]) -> list[RecomputedReply]:
    """What the answer makes of each list of actions."""
    replies = []
    for case in cases:
        actions = actions_from(case)
        result = answer(actions)
        new = type(result) is list and result is not actions
        plain = [plain_action(action) for action in result]
        replies.append(RecomputedReply(plain, [*map(plain_action, actions)], new))
    return replies


@dataclass(frozen=True, slots=True)
class PlanReply(DriverReply):
    """stages: each one's actions. seconds, memory: the arguments afterwards."""

    stages: list[list[PlainData]]
    seconds: PlainData
    memory: PlainData


def planned(
    answer: AnswerFunction, seconds: list[list[float]], micro_batches: int, memory: list[int]
) -> PlanReply:
    """The answer's schedule, stage by stage."""
    given = [(forward, first, second) for forward, first, second in seconds]
    stages = answer(given, micro_batches, memory)
    listed = [[plain_action(action) for action in actions] for actions in stages]
    return PlanReply(listed, [*map(list, given)], memory)


@dataclass(frozen=True, slots=True)
class StashReply(DriverReply):
    """What a stash did, action by action.

    told: of a forward the output, of a backward the gradient of its input. attached: whether one of them
    still has its graph. versions: what the stash said after each action. held: bytes of all tensors alive
    then that were made since the first action, and of the stage's parameters. weights: the stage's, in the
    end.
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
    rate: float,
    momentum: float,
    actions: list[tuple[str, int, Tensor]],
) -> StashReply:
    """Have a stash of a `Twice` with these values do the actions, each ("forward", batch, x [B, I]) or
    ("backward", batch, gradient [B, O]).
    """
    stage = Twice(values, frozen)
    # torch.optim would be imported for a second.
    trained = [parameter for parameter in stage.parameters() if parameter.requires_grad]
    stashed = answer(stage, Descent(trained, rate, momentum))
    told: list[PlainData] = []
    versions, held, attached = [], [], False
    with HeldBytes(stage.parameters()) as memory:
        for kind, batch, tensor in actions:
            result = getattr(stashed, kind)(batch, tensor.clone())
            if isinstance(result, Tensor):
                attached = attached or result.requires_grad
                # As a list, so that it is not counted among the tensors.
                told.append(result.detach().tolist())
            else:
                told.append(None)
            del result
            versions.append(stashed.versions)
            held.append(memory.count())
    return StashReply(
        [None if one is None else torch.tensor(one) for one in told],
        attached,
        versions,
        held,
        copies_of(stage.parameters()),
    )


def missing_batch(answer: AnswerFunction, values: list[Tensor], order: list[int]) -> list[str]:
    """What backwards of these batches raise, by name, after the forward of batch 0; empty where nothing."""
    stage = Twice(values, False)
    stashed = answer(stage, Descent(list(stage.parameters()), 0.1, 0.0))
    width, out = values[0].shape[0], values[1].shape[1]
    stashed.forward(0, torch.ones(1, width))
    raised = []
    for batch in order:
        try:
            stashed.backward(batch, torch.ones(1, out))
            raised.append("")
        except Exception as error:
            raised.append(type(error).__name__)
    return raised
