"""The grader of `run_stage`."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.expected import Checked, Expected, same
from graders.grading.explanation import Tried
from graders.grading.kinds import Kind
from graders.grading.kit import Criterion, Finding, compare
from graders.grading.traffic import Allowed
from graders.units.models import gradients_of
from graders.units.ranks.rows import frugal, kept
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_05 import drivers
from graders.units.unit_05.pieces import Piece, lopsided_loss
from graders.units.unit_05.pipelines import Pipeline, a_pipeline, shapes

COLLECTIVES = ("barrier", "broadcast", "all_reduce", "all_gather")
"""Calls that are too much, as a row says, and spoil no result."""


def messages_needed(case: Pipeline) -> Allowed:
    """Each call sends a message over each cut there, and one back."""
    cuts = [case.times * (8 if case.doubled else 4) * math.prod(shape) for shape in shapes(case)[1:-1]]
    of_rank = [there + back for there, back in pairwise([0, *cuts, 0])]
    messages = case.times * min(2, len(cuts))
    return Allowed(messages, max(of_rank), 0, 0.0, 2 * case.times * len(cuts), 2 * sum(cuts))


def only_messages(tried: Tried[Pipeline]) -> Finding | None:
    """Passes if there are no collectives, and no more messages and bytes than are needed."""
    others = {event.op for events in tried.seen.by_rank for event in events} - {"send", "recv"}
    if others:
        text = f"it calls {', '.join(sorted(others))}; expected messages to neighbours only."
        return Finding(False, text, Kind.TOO_MUCH)
    return frugal(tried)


@on_ranks(
    base=Pipeline(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "loss and gradients",
            6,
            "The last rank returns the loss, without its graph; the others return None. Backward of a stage "
            "begins with the gradient of its output: the next stage has it, as the gradient of its input.",
        ),
        Criterion(
            "any number of stages",
            1,
            "One stage is first and last; it sends nothing.",
            vary=vary(ranks=(1, 4)),
        ),
        Criterion(
            "doubles, frozen stages",
            2,
            "Make room for the gradient with the output's shape and dtype. If the first stage is frozen, its "
            "output asks for no gradient, and the next stage sends one nevertheless.",
            vary=vary(doubled=(True,), frozen=(True,)),
        ),
        Criterion(
            "one forward",
            1,
            "Compute each batch once, in the mode in which the stage is: dropout would draw another mask. x "
            "stays as it is, and asks for no gradient. (PyTorch's PipelineStage computes a first time to "
            "learn shapes.)",
            vary=vary(training=(False,)),
            how=kept,
        ),
        Criterion(
            "messages and bytes",
            1,
            "Each output goes to the next rank once, each gradient back once, and nothing else is sent. "
            "(PyTorch's PipelineStage sends shapes too; here x tells them.)",
            how=only_messages,
        ),
        Criterion(
            "micro-batches",
            2,
            "Called for m parts of a batch, each with a share of 1 / m, losses and gradients add up to those "
            "of the batch. Where does one factor in one place scale the gradients of all ranks?",
            vary=vary(times=(2,)) + both(times=3, share=1 / 3),
        ),
        Criterion(
            "any layout",
            1,
            "Messages need contiguous tensors, and what a stage returns may lie column by column; "
            "torch.empty_like keeps that order, torch.empty(y.shape, dtype=y.dtype) does not. (PyTorch's "
            "PipelineStage leaves this to the stage.)",
            vary=vary(turned=(True,)),
        ),
    ),
    hints=(
        "Which tensors does backward of one stage need, and which of them has another rank?",
        "A tensor that has arrived was computed by nobody as far as autograd knows. What makes autograd keep "
        "a gradient for such a tensor?",
        "output.backward(gradient) begins in the middle: with the gradient of something that is no loss.",
    ),
    arguments=a_pipeline,
    allowed=messages_needed,
    calls=("send", "recv", *COLLECTIVES),
    possible=lambda case: case.ranks > 1 or not case.frozen,
    driver=drivers.by_hand,
)
def run_stage(case: Pipeline, given: list[Arguments]) -> list[Expected]:
    """Losses and gradients of the model in one piece."""
    pieces = [Piece(*stage) for stage, *_ in given]
    losses = []
    for hidden, target in zip(given[0][1], given[-1][2], strict=True):
        for piece in pieces:
            hidden = piece(hidden)
        loss = case.share * lopsided_loss(hidden, target)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    told = []
    for place, (piece, (_, xs, *_)) in enumerate(zip(pieces, given, strict=True)):
        of_rank = losses if place == case.ranks - 1 else [None] * case.times
        modes = [*[case.training] * case.times, case.training]
        left = {"x": xs, "the modes of its forwards, and its mode": modes}
        result = Checked(partial(_result, losses=of_rank, gradients=gradients_of(piece)))
        told.append(Expected(result, left, returned=None))
    return told


def _result(
    seen: Any, what: str, losses: Sequence[Tensor | None], gradients: Sequence[Tensor | None]
) -> Finding:
    """Passes if these are the losses, without graphs, and the gradients. seen: losses, whether one has a
    graph, gradients.
    """
    place = what.replace("what ", "").replace(" returned", "")
    told, attached, found = (part for part, _ in compare.side_by_side(seen, range(3)))
    right = compare.first_failure(
        [
            same(told, list(losses), f"the losses that {place} returns", 1e-5),
            same(found, list(gradients), f"the gradients of {place}", 1e-5),
        ]
    )
    text = "the loss has its graph still, and with it all activations: return loss.detach()."
    return Finding(False, text) if right.passed and attached else right
