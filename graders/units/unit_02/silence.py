"""Unit 02, backward passes that send nothing, and the one after them that sends the sums."""

import torch
from torch.nn import functional

from graders.grading import compare
from graders.grading.communication import steps_of
from graders.grading.kit import Answer, Finding, Rng, per_rank
from graders.units.models import load_values
from graders.units.unit_02.averaging import gradients_as
from graders.units.unit_02.drivers import bucketed as drivers
from graders.units.unit_02.models import Chain
from graders.units.unit_02.training import Training, Used, buckets_as_specified


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
    finding = gradients_as(observed.results, [[*expected]] * ranks, rtol=1e-4)
    if not finding.passed:
        return finding
    for step in steps_of(observed, "finished"):
        left = step.marks.get("leaves no_sync", step.marks["finished"])
        early = sum(call.sequence < left.sequence for call in step.calls)
        if early:
            return Finding(False, f"{step}: {compare.counted(early, 'call')} within no_sync; expected none.")
        ended = step.marks.get("backward ends", step.marks["finished"])
        made, buckets = sum(call.sequence < ended.sequence for call in step.calls), len(training.buckets())
        if started and made < buckets:
            text = f"the backward after the block, which ended with an error, started {made} of {buckets}"
            return Finding(False, f"{step}: {text} buckets.")
    return buckets_as_specified(training, observed)


def silent_only(answer: Answer, rng: Rng, ranks: int) -> Finding:
    """Passes if the sums are right of what only passes within no_sync used, other branches on each rank, in
    two blocks, and those of the step after it.
    """
    case = Used.draw(rng, ranks)
    used = [[[1 + rank, 0, 2 - rank], [1]] for rank in range(ranks)]
    return case.right(used, case.launch(answer, used, 10**6))
