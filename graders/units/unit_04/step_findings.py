"""What steps of training with DistributedOptimizer came to, and when their messages set off."""

from typing import Any

from course_lib.runtime.communication.events import Event
from graders.grading.communication import steps_of
from graders.grading.kit import Finding, Observed, compare
from graders.units.unit_04.replies import StepReply
from graders.units.unit_04.training import Training, all_close, ends


def steps_as_expected(training: Training, observed: Observed[list[StepReply]]) -> Finding:
    """Passes if gradients and parameters after each step are as on one rank with all samples."""
    expected = training.expected
    for rank, replies in enumerate(observed.results):
        pairs = compare.side_by_side(replies, expected)
        for step, (reply, (gradients, parameters)) in enumerate(pairs):
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
    """Passes if each message set off as soon as it could, and none before the last pass."""
    for step in steps_of(observed, "stepped"):
        deadlines = training.deadlines(step.rank, step.number)
        before_last = ends(training.passes - 2)
        if training.passes > 1 and any(_before(call, step.marks.get(before_last)) for call in step.calls):
            text = f"a message set off before pass {training.passes} of {training.passes}"
            return Finding(False, f"{step}: {text}.")
        for number, deadline in enumerate(deadlines, start=1):
            made = sum(_before(call, step.marks.get(deadline)) for call in step.calls)
            if made < number:
                text = f"{number} of {len(deadlines)} messages are complete and {made} started"
                return Finding(False, f"{step}: when {deadline}, {text}.")
    return Finding(True, "Every message sets off as soon as its gradients are complete, on every rank.")


def _before(call: Event, mark: Event | None) -> bool:
    return mark is not None and call.sequence < mark.sequence


def never_waits(training: Training, observed: Observed[Any]) -> Finding:
    """Passes if backward ended before the first all_reduce of its step did, on a slow link."""
    for step in steps_of(observed, "stepped"):
        first = min((call.end for call in step.calls), default=float("inf"))
        passes = len(training.orders[step.rank][step.number])
        ended = step.marks.get(ends(passes - 1), step.marks["stepped"])
        if ended.end >= first:
            text = f"backward ended {ended.end - first:.1f} s after the first all_reduce, so it waited for it"
            return Finding(False, f"{step}: {text}.")
    return Finding(True, "Backward ends while the first all_reduce is still under way.")
