"""Unit 04, an optimizer that averages."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from course_lib.runtime.communication.events import Event
from graders.grading.communication import steps_of
from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, compare, exercise
from graders.units.unit_04.replies import StepReply
from graders.units.unit_04.training import Training, all_close, draw_tied, draw_training, ends
from graders.units.unit_04.wrapped import refuses, the_optimizers_own


@exercise(
    name="DistributedOptimizer",
    minutes=75,
    difficulty=5,
    rubric=(
        Criterion(
            "averages and steps",
            3,
            "After step() every .grad is the mean over ranks and the weights have taken one step with it. "
            "Wait for each all_reduce before you read what it brings. Zeros where others are right: which "
            "gradients were still missing when the message was filled?",
        ),
        Criterion("every step", 1, "What one step has counted and started must be gone before the next."),
        Criterion(
            "fusion plan",
            2,
            "The trainable parameters in reverse, by plan_fusion with the threshold: one all_reduce a "
            "message, in order, and no other call.",
            needs=("every step",),
        ),
        Criterion(
            "starts during backward",
            2,
            "The hook of a message's last gradient starts it, whichever that is: gradients need not become "
            "complete in the order of the parameters. And it starts those after it that have become "
            "complete before.",
            needs=("fusion plan",),
        ),
        Criterion("never waits in backward", 1, "async_op=True; only synchronize() waits."),
        Criterion(
            "several passes",
            2,
            "Count the passes of every parameter. Only the last pass starts messages; gradients are added "
            "up.",
            needs=("every step", "fusion plan", "starts during backward"),
        ),
        Criterion(
            "other orders, unused parameters",
            2,
            "Which hook comes last differs from rank to rank, and some never come: start messages strictly "
            "in the plan's order, and what is left in synchronize(), with zeros for what is missing; "
            "after too few passes, all.",
            needs=("every step", "fusion plan", "starts during backward", "several passes"),
        ),
        Criterion(
            "several dtypes",
            1,
            "A message has one dtype, and its buffer the same.",
            needs=("every step", "fusion plan", "starts during backward"),
        ),
        Criterion(
            "tied and frozen parameters",
            1,
            "One parameter may have two names, and a frozen one has no hook.",
            needs=("every step", "fusion plan", "starts during backward"),
        ),
        Criterion(
            "the optimizer's own",
            1,
            "Hand on what is not yours, closures too; NaN stays NaN; a mean is copied into the .grad that is "
            "there. step() after synchronize() sends no "
            "more, and step() without backward sends zeros.",
            needs=("every step", "fusion plan"),
        ),
        Criterion(
            "refuses",
            1,
            "RuntimeError from zero_grad() while something is under way, before it clears, and from a hook "
            "that comes too often.",
        ),
    ),
    hints=(
        "What has to be known before the first backward, and is the same on all ranks?",
        "What does a hook have to find out to decide whether its message can go, and what when it can?",
        "How does a rank start a message for which one of its own hooks never comes?",
        "Which of your attributes would a second step find changed by the first?",
        "When is a gradient complete if backward runs several times before the step?",
    ),
)
def distributed_optimizer(answer: Answer, rng: Rng) -> Findings:
    """Training on slow links; then passes, paths, dtypes, tied parameters; then the optimizer's manners."""
    training = draw_training(rng, to_none=False)
    observed = training.launch(answer)
    yield "averages and steps", steps_as_expected(training, observed, range(1))
    yield "every step", steps_as_expected(training, observed, range(1, training.steps))
    yield "fusion plan", messages_as_planned(training, observed)
    yield "starts during backward", starts_when_complete(training, observed)
    yield "never waits in backward", never_waits(training, observed)
    yield "several passes", judged(answer, draw_training(rng, passes=rng.integer(2, 3), steps=2))
    paths = [draw_training(rng, layers=5, mixed_paths=True, passes=passes) for passes in (1, 2)]
    short = replace(draw_training(rng, passes=2, steps=2), passes=3)
    cases = (*paths, short)
    yield "other orders, unused parameters", compare.first_failure(judged(answer, each) for each in cases)
    mixed = draw_training(rng, layers=5, dtypes=("float64", "float32", "bfloat16"), steps=1)
    yield "several dtypes", judged(answer, mixed)
    yield "tied and frozen parameters", judged(answer, draw_tied(rng))
    kept = keeps_gradients(observed)
    yield "the optimizer's own", the_optimizers_own(answer, rng) if kept.passed else kept
    yield "refuses", refuses(answer, rng)


def judged(answer: Answer, training: Training) -> Finding:
    """Passes if a training comes to what it should, with the messages of its plan, each in time."""
    return compare.first_failure(_judged(training, training.launch(answer)))


def _judged(training: Training, observed: Observed[list[StepReply]]) -> Iterator[Finding]:
    yield steps_as_expected(training, observed, range(training.steps))
    yield messages_as_planned(training, observed)
    yield starts_when_complete(training, observed)


def steps_as_expected(training: Training, observed: Observed[list[StepReply]], steps: range) -> Finding:
    """Passes if gradients and parameters after these steps are as on one rank with all samples."""
    expected = training.expected
    for rank, replies in enumerate(observed.results):
        pairs = list(compare.side_by_side(replies, expected))
        for step in steps:
            reply, (gradients, parameters) = pairs[step]
            finding = compare.first_failure(
                (
                    all_close(reply.gradients, gradients, "the gradient of parameter"),
                    all_close(reply.parameters, parameters, "the value of parameter"),
                )
            )
            if not finding.passed:
                return Finding(False, f"rank {rank}, step {step}: {finding.seen}")
    return Finding(True, "Gradients and weights are those of one process with all samples, on every rank.")


def messages_as_planned(training: Training, observed: Observed[Any]) -> Finding:
    """Passes if every rank made one all_reduce a message, in order, in every step, and no other call."""
    expected = [sum(each.nbytes for each in message) for message in training.messages]
    for rank in range(len(observed.results)):
        if first := [call.op for call in observed.communication(rank) if call.op != "all_reduce"]:
            return Finding(False, f"rank {rank} calls {', '.join(first[:3])}; a step has only all_reduces.")
    for step in steps_of(observed, "stepped"):
        seen = [call.nbytes for call in step.calls]
        if seen != expected:
            said = f"{step}: all_reduce with {seen} bytes"
            return Finding(False, f"{said}; the plan for {training.threshold} bytes is {expected}.")
    return Finding(True, f"Every step makes one all_reduce a message, of {expected} bytes.")


def starts_when_complete(training: Training, observed: Observed[Any]) -> Finding:
    """Passes if on every rank, in every step, each message set off as soon as it could, and none before the
    last pass.
    """
    for step in steps_of(observed, "stepped"):
        deadlines = training.deadlines(step.rank, step.number)
        before_last = ends(training.passes - 2)
        if training.passes > 1 and any(_before(call, step.marks.get(before_last)) for call in step.calls):
            text = f"a message set off before pass {training.passes} of {training.passes}"
            return Finding(False, f"{step}: {text}.")
        for number, deadline in enumerate(deadlines, start=1):
            made = sum(_before(call, step.marks.get(deadline)) for call in step.calls)
            if made < number:
                when = "at the end of step()" if deadline == "stepped" else f"when {deadline}"
                text = f"{when}, {number} of {len(deadlines)} messages are complete and {made} started"
                return Finding(False, f"{step}: {text}.")
    return Finding(True, "Every message sets off as soon as its gradients are complete, on every rank.")


def _before(call: Event, mark: Event | None) -> bool:
    return mark is not None and call.sequence < mark.sequence


def never_waits(training: Training, observed: Observed[Any]) -> Finding:
    """Passes if backward ended before the first all_reduce of its step did, on a slow link."""
    for step in steps_of(observed, "stepped"):
        first = min((call.end for call in step.calls), default=float("inf"))
        ended = step.marks.get(ends(training.passes - 1), step.marks["stepped"])
        if ended.end >= first:
            text = f"backward ended {ended.end - first:.1f} s after the first all_reduce, so it waited for it"
            return Finding(False, f"{step}: {text}.")
    return Finding(True, "Backward ends while the first all_reduce is still under way.")


def keeps_gradients(observed: Observed[list[StepReply]]) -> Finding:
    """Passes if every .grad that was there before step() is the same tensor afterwards."""
    return compare.first_failure(
        Finding(reply.in_place, f"rank {rank}, step {step}: some .grad is another tensor than before step().")
        for rank, replies in enumerate(observed.results)
        for step, reply in enumerate(replies)
    )
