"""Unit 02, backward passes that send nothing, and the one after them that sends the sums."""

from collections import Counter

import torch
from torch.nn import functional

from graders.grading import compare
from graders.grading.communication import Step, steps_of
from graders.grading.kit import Answer, Finding, Rng, per_rank
from graders.units.models import load_values
from graders.units.unit_02.drivers import bucketed as drivers
from graders.units.unit_02.models import ALL, Chain, names_of
from graders.units.unit_02.steps import Training, Used, buckets_as_specified, gradients_as


def accumulated(answer: Answer, training: Training, started: bool) -> Finding:
    """Passes if backward passes within no_sync, the first in a block within it, and one after them give the
    mean of their sums, and nothing is sent before that one. started: whether it counts that this one starts
    all buckets.
    """
    ranks = len(training.values)
    given = training.widths, per_rank(training.values), per_rank(training.batches), training.bucket_bytes
    observed = answer.launch(drivers.accumulated, *given, ranks=ranks)
    model = Chain(training.widths)
    parameters = list(model.parameters())
    load_values(parameters, training.values[0])
    losses = [
        functional.mse_loss(model(inputs), targets) for of in training.batches for inputs, targets in of
    ]
    expected = [*torch.autograd.grad(torch.stack(losses).sum() / ranks, parameters)]
    quiet = compare.first_failure(_silent(step) for step in steps_of(observed, "finished"))
    if not quiet.passed:
        return quiet
    finding = gradients_as(observed.results, [[*expected]] * ranks, names_of(model))
    if not finding.passed:
        return finding
    for step in steps_of(observed, "finished"):
        ended = step.marks.get("backward ends", step.marks["finished"])
        made, buckets = sum(call.sequence < ended.sequence for call in step.calls), len(training.buckets())
        if started and made < buckets:
            text = f"the backward after the block, which ended with an error, started {made} of {buckets}"
            return Finding(False, f"{step}: {text} buckets.")
    return buckets_as_specified(training, observed)


def _silent(step: Step) -> Finding:
    """Passes if nothing was sent in the outer block of no_sync, nor in the one within it."""
    left = step.marks.get("leaves no_sync", step.marks["finished"]).sequence
    inner = step.marks.get("leaves the inner block", step.marks["finished"]).sequence
    calls = Counter(call.op for call in step.calls if call.sequence < inner)
    later = Counter(call.op for call in step.calls if inner < call.sequence < left)
    if calls or later:
        [(op, number), *_] = (calls or later).items()
        text = f"rank {step.rank} started {number} {op} within the no_sync() block"
        after = "" if calls else ", after a no_sync() block within it had ended"
        return Finding(False, f"{text}{after}; expected none.")
    return Finding(True, "Nothing is sent within no_sync().")


def silent_only(answer: Answer, rng: Rng, ranks: int) -> Finding:
    """Passes if the sums are right of what only passes within no_sync used, other branches on each rank, in
    two blocks, and those of the step after it; and once more with a block in which all are used, and with all
    after a block in which one is.
    """
    case = Used.draw(rng, ranks)
    used = [[[1 + rank, 0, 2 - rank], [1], [ALL, 1], [2 - rank, ALL]] for rank in range(ranks)]
    return case.right(used, case.launch(answer, used, 10**6))
