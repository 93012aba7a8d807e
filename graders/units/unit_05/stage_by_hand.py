"""Unit 05, one stage by hand: what it sends and receives, and the gradients that come of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.communication import Allowance, only_messages, traffic_within
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.models import gradients_of
from graders.units.unit_05 import drivers
from graders.units.unit_05.drivers import ByHandReply
from graders.units.unit_05.pieces import Piece, lopsided_loss

RESULT = ("loss", "gradients")

ALL = ("weight", "bias")
FROZEN = ((ALL, ALL, (), ()), ((), ALL, ("bias",)), (("weight",), ("bias",), ALL), (ALL,))
"""By case and rank, which parameters are not trained."""


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "loss",
            2,
            "The last rank returns the loss of the batch, without its graph; the others return None. What "
            "arrives has x's shape and dtype.",
        ),
        Criterion(
            "gradients",
            3,
            "Backward of a stage begins with the gradient of its output, which the next stage has: its input "
            "is the same tensor.",
        ),
        Criterion(
            "once more", 1, "Called again, gradients add up as after two backwards, and x is as it was."
        ),
        Criterion("any number of stages", 1, "One stage is first and last; it sends nothing.", needs=RESULT),
        Criterion(
            "tokens and doubles",
            1,
            "Of the batch itself nobody needs a gradient, and of whole numbers there is none. Make room for "
            "the gradient with the output's shape and dtype.",
            needs=RESULT,
        ),
        Criterion(
            "frozen stage",
            1,
            "Any parameters may be frozen. If none of the first stages is trained, their output asks for no "
            "gradient, and the next stage sends one nevertheless. A frozen stage behind a trained one hands "
            "the gradient on.",
            needs=RESULT,
        ),
        Criterion(
            "no weights",
            1,
            "A stage may have no parameters, as one that only reshapes: ask its output for dtype and shape.",
            needs=RESULT,
        ),
        Criterion(
            "one forward",
            1,
            "Compute each batch once, in the mode in which the stage is: dropout would draw another mask.",
            needs=("loss", "gradients", "once more"),
        ),
        Criterion(
            "messages and bytes",
            2,
            "Each output goes to the next rank once, each gradient back once, and nothing else is sent.",
            needs=RESULT,
        ),
        Criterion(
            "any layout",
            1,
            "Messages need contiguous tensors, and what a stage returns may lie column by column; "
            "torch.empty_like keeps that order, torch.empty(y.shape, dtype=y.dtype) does not.",
            needs=RESULT,
        ),
    ),
    hints=(
        "Which tensors does backward of one stage need, and which of them has another rank?",
        "A tensor that has arrived was computed by nobody as far as autograd knows. What makes autograd keep "
        "a gradient for such a tensor?",
        "output.backward(gradient) begins in the middle: with the gradient of something that is no loss.",
    ),
)
def run_stage(answer: Answer, rng: Rng) -> Findings:
    """Stages of drawn widths: the usual ones, then those with something special."""
    usual = _drawn(rng, ranks=3, calls=2)
    first, twice = usual.launched(answer, calls=1), usual.launched(answer, calls=2)
    yield "loss", usual.losses_in(first)
    yield "gradients", usual.gradients_in(first)
    yield "once more", _once_more(usual, twice)

    others = [_drawn(rng, ranks=ranks) for ranks in (1, 2, 5)]
    yield "any number of stages", _all_right(answer, others)
    special = [_drawn(rng, ranks=2, tokens=True), _drawn(rng, ranks=3, doubled=True)]
    yield "tokens and doubles", _all_right(answer, special)
    yield "frozen stage", _all_right(answer, [_drawn(rng, len(names), frozen=names) for names in FROZEN])
    yield "no weights", _all_right(answer, [_drawn(rng, ranks=3, bare=place) for place in (0, 1)])
    yield "one forward", _once_each([(twice, True), (usual.launched(answer, 2, training=False), False)])
    yield "messages and bytes", _cheap([(usual, first), *((case, case.launched(answer)) for case in others)])
    # Last, since a message that cannot be sent ends the judging.
    yield "any layout", _all_right(answer, [_drawn(rng, ranks=3, turned=True)])


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages, by rank, and what goes through them: a batch, its targets and buffers for each call.

    stages: what `Piece` takes, by rank. xs: by rank; of rank 0 a batch for each call, of the others one for
    all. targets: by rank and call.
    """

    stages: list[tuple[list[Tensor], bool, bool, list[str]]]
    xs: list[list[Tensor]]
    targets: list[list[Tensor | None]]

    @property
    def ranks(self) -> int:
        return len(self.stages)

    def launched(self, answer: Answer, calls: int = 1, *, training: bool = True) -> Observed[ByHandReply]:
        """What the answer makes of the first batches, with stages in this mode."""
        return answer.launch(
            drivers.by_hand,
            per_rank(self.stages),
            per_rank([xs[:calls] for xs in self.xs]),
            per_rank([targets[:calls] for targets in self.targets]),
            training,
            ranks=self.ranks,
        )

    def in_one_piece(self, calls: int) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Losses by call, and gradients by rank, of the model on one rank."""
        pieces = [Piece(*stage) for stage in self.stages]
        losses = []
        for number in range(calls):
            hidden = self.xs[0][number]
            for piece in pieces:
                hidden = piece(hidden)
            target = self.targets[-1][number]
            assert target is not None
            loss = lopsided_loss(hidden, target)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return losses, [gradients_of(piece) for piece in pieces]

    def losses_in(self, run: Observed[ByHandReply], calls: int = 1) -> Finding:
        """Whether the last rank has the losses of the model in one piece, and the others have none."""
        expected, _ = self.in_one_piece(calls)

        def findings() -> list[Finding]:
            found = [
                compare.equal(loss, None, f"What rank {rank} of {self.ranks} returns")
                for rank, reply in enumerate(run.results[:-1])
                for loss in reply.losses
            ]
            found += [
                compare.close(seen, loss, "The loss")
                for seen, loss in compare.side_by_side(run.results[-1].losses, expected)
            ]
            attached = run.results[-1].attached
            text = "The loss has its graph still, and with it all activations: return loss.detach()."
            return [*found, Finding(not attached, text if attached else found[-1].seen)]

        return compare.first_failure(findings())

    def gradients_in(self, run: Observed[ByHandReply], calls: int = 1) -> Finding:
        """Whether every parameter has the gradient that it has in one piece."""
        _, expected = self.in_one_piece(calls)
        return compare.first_failure(
            _same_gradient(seen, gradient, rank, self.ranks)
            for rank, reply in enumerate(run.results)
            for seen, gradient in compare.side_by_side(reply.gradients, expected[rank])
        )


def _same_gradient(seen: Tensor | None, expected: Tensor | None, rank: int, ranks: int) -> Finding:
    what = f"A gradient of rank {rank} of {ranks}"
    if expected is None:
        return compare.equal(seen, None, what)
    return compare.close(seen, expected, what)


def _drawn(
    rng: Rng,
    ranks: int,
    calls: int = 1,
    *,
    turned: bool = False,
    tokens: bool = False,
    doubled: bool = False,
    frozen: Sequence[Sequence[str]] = (),
    bare: int | None = None,
) -> Pipeline:
    """Stages of different widths. tokens: the batch is of whole numbers. doubled: stage 0 makes float64 of
    it. frozen: by rank. bare: the stage that has no weights.
    """
    # Of tokens there are several a sample.
    batch = (rng.integer(2, 5), 3) if tokens else (rng.integer(2, 5),)
    widths = [rng.integer(2, 6) for _ in range(ranks + 1)]
    if bare is not None:
        widths[bare + 1] = widths[bare]
    dtypes = [torch.float32, *[torch.float64 if doubled else torch.float32] * ranks]
    values = [
        [
            rng.normal(*shape, dtype=dtypes[rank])
            for shape in (widths[rank : rank + 2], widths[rank + 1 : rank + 2])
        ]
        for rank in range(ranks)
    ]
    xs = [
        [rng.normal(*batch, widths[0]) for _ in range(calls)],
        *([torch.full((*batch, widths[rank]), -7.0, dtype=dtypes[rank])] for rank in range(1, ranks)),
    ]
    if tokens:
        values[0].append(rng.normal(9, widths[0]))
        xs[0] = [rng.integers(0, 8, *batch) for _ in range(calls)]
    targets: list[list[Tensor | None]] = [[None] * calls for _ in range(ranks)]
    targets[-1] = [rng.normal(*batch, widths[-1], dtype=dtypes[-1]) for _ in range(calls)]
    stages = [
        (
            [] if rank == bare else values[rank],
            turned,
            doubled and rank == 0,
            list(frozen[rank]) if frozen else [],
        )
        for rank in range(ranks)
    ]
    return Pipeline(stages, xs, targets)


def _once_more(pipeline: Pipeline, run: Observed[ByHandReply]) -> Finding:
    findings = [pipeline.losses_in(run, 2), pipeline.gradients_in(run, 2)]
    for rank, reply in enumerate(run.results):
        text = f"x of rank {rank} has been changed, or asks for a gradient now: work on a tensor of your own."
        findings.append(Finding(reply.kept, "x is as it was." if reply.kept else text))
    return compare.first_failure(findings)


def _once_each(runs: Sequence[tuple[Observed[ByHandReply], bool]]) -> Finding:
    """Whether every stage has computed once in each of two calls, in the mode that it had and has."""
    for run, training in runs:
        for rank, reply in enumerate(run.results):
            if (reply.modes, reply.training) != ([training] * 2, training):
                seen = ["in training" if mode else "in evaluation" for mode in reply.modes]
                text = f"In two calls rank {rank}, whose stage has training={training}, computed {seen}"
                return Finding(False, f"{text}, and has training={reply.training} now; expected 2 forwards.")
    return Finding(True, "Every stage has computed once a call, in its mode.")


def _all_right(answer: Answer, pipelines: Sequence[Pipeline]) -> Finding:
    """Losses and gradients of every one."""

    def findings() -> list[Finding]:
        runs = [(pipeline, pipeline.launched(answer)) for pipeline in pipelines]
        return [
            finding
            for pipeline, run in runs
            for finding in (pipeline.losses_in(run), pipeline.gradients_in(run))
        ]

    return compare.first_failure(findings(), "Losses and gradients are those of the model in one piece.")


def _cheap(runs: Sequence[tuple[Pipeline, Observed[ByHandReply]]]) -> Finding:
    """Only messages, none of them twice."""

    def findings() -> list[Finding]:
        found = [only_messages([run for _, run in runs], "run_stage")]
        for pipeline, run in runs:
            sizes = [xs[0].numel() * xs[0].element_size() for xs in pipeline.xs[1:]]
            there, back = [*sizes, 0], [0, *sizes]
            allowed = [
                Allowance((there[rank] > 0) + (back[rank] > 0), there[rank] + back[rank])
                for rank in range(pipeline.ranks)
            ]
            found.append(traffic_within(run, allowed, compare.counted(pipeline.ranks, "stage")))
        return found

    return compare.first_failure(findings())
