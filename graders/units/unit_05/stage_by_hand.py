"""Unit 05, one stage by hand: what it sends and receives, and the gradients that come of it."""

from collections.abc import Sequence
from dataclasses import replace

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
)
from graders.units.unit_05.drivers import ByHandReply
from graders.units.unit_05.pipelines import Pipeline, drawn_pipeline

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
            "once more",
            1,
            "Called again, gradients add up as after two backwards, and x is as it was.",
            needs=RESULT,
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
            needs=(*RESULT, "once more"),
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
            1,
            "Each output goes to the next rank once, each gradient back once, and nothing else is sent.",
            needs=RESULT,
        ),
        Criterion(
            "micro-batches",
            1,
            "Called for m parts of a batch, each with a share of 1 / m, losses and gradients add up to those "
            "of the batch. Where does one factor in one place scale the gradients of all ranks?",
            needs=("loss", "gradients", "once more"),
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
    usual = drawn_pipeline(rng, ranks=3, calls=2)
    first, twice = usual.launched(answer, calls=1), usual.launched(answer, calls=2)
    yield "loss", usual.losses_in(first)
    yield "gradients", usual.gradients_in(first)
    yield "once more", _once_more(usual, twice)

    others = [drawn_pipeline(rng, ranks=ranks) for ranks in (1, 2, 5)]
    yield "any number of stages", _all_right(answer, others)
    special = [drawn_pipeline(rng, ranks=2, tokens=True), drawn_pipeline(rng, ranks=3, doubled=True)]
    yield "tokens and doubles", _all_right(answer, special)
    frozen = _all_right(answer, [drawn_pipeline(rng, len(names), frozen=names) for names in FROZEN])
    yield "frozen stage", frozen
    # A stage without weights behind others is a frozen one.
    places = (0, 1) if frozen.passed else (0,)
    yield "no weights", _all_right(answer, [drawn_pipeline(rng, ranks=3, bare=place) for place in places])
    yield "one forward", _once_each([(twice, True), (usual.launched(answer, 2, training=False), False)])
    yield "messages and bytes", _cheap([(usual, first), *((case, case.launched(answer)) for case in others)])
    parts = replace(drawn_pipeline(rng, ranks=3, calls=3), share=1 / 3)
    run = parts.launched(answer, calls=3)
    yield "micro-batches", compare.first_failure([parts.gradients_in(run, 3), parts.losses_in(run, 3)])
    # Last, since a message that cannot be sent ends the judging.
    yield "any layout", _all_right(answer, [drawn_pipeline(rng, ranks=3, turned=True)])


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
