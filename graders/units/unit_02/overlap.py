"""Unit 02, the same gradient while backward still computes."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading import compare
from graders.grading.communication import payload_of, steps_of
from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, exercise, per_rank
from graders.units.models import Gradients, load_values
from graders.units.unit_02.averaging import gradients_as
from graders.units.unit_02.drivers import bucketed as drivers
from graders.units.unit_02.models import ALL, REACHES_SHARED, Tied, reaches
from graders.units.unit_02.replicas import draw_normed, outside_of_autograd, same_tensors
from graders.units.unit_02.silence import accumulated, silent_only
from graders.units.unit_02.training import (
    Training,
    Used,
    buckets_as_specified,
    draw_training,
    never_waits_in_backward,
)


@exercise(
    name="BucketedDDP",
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(
            "starts equal",
            1,
            "The constructor broadcasts rank 0's parameters and buffers, once; forward only calls the model.",
        ),
        Criterion(
            "averages",
            1,
            "After finish() every p.grad is the mean over ranks, as with average_gradients. Wait for each "
            "all_reduce before you read its bucket, and write the result back.",
        ),
        Criterion(
            "every step",
            1,
            "What the hooks count in one step must be back at its start for the next: reset it in finish().",
            needs=("averages",),
        ),
        Criterion(
            "buckets",
            1,
            "Go through the trainable parameters in reverse, and close a bucket before the parameter that "
            "would take it above bucket_bytes. One all_reduce a bucket.",
            needs=("averages", "every step"),
        ),
        Criterion(
            "starts during backward",
            2,
            "The hook of a bucket's last gradient starts its all_reduce, for every bucket; do not leave it "
            "to a later hook, or to finish().",
            needs=("buckets",),
        ),
        Criterion(
            "never waits in backward",
            1,
            "all_reduce(..., async_op=True) returns a handle at once; only finish() calls its wait().",
            needs=("averages",),
        ),
        Criterion(
            "unused parameters",
            1,
            "A parameter that this rank's forward did not use has no hook call. finish() starts what has not "
            "started, with zeros for it; and every rank must start its buckets in the same order, each only "
            "when it is complete: layers need not run in the order in which they are registered. So one hook "
            "may have several buckets to start: those that are complete and waited for an earlier one.",
            needs=("averages", "every step", "buckets"),
        ),
        Criterion(
            "tied and frozen parameters",
            1,
            "model.parameters() yields a tied parameter once; a frozen one is in no bucket and has no hook.",
            needs=("averages",),
        ),
        Criterion(
            "no_sync",
            1,
            "Within no_sync() the hooks have nothing to do. The next backward outside completes gradients "
            "that hold the sums, and sends those; finish() those that it did not use. `finally` makes it end "
            "when the block raises, too; and after a block within a block it is as it was before.",
            needs=("averages", "buckets"),
        ),
    ),
    hints=(
        "Which of the rank's buckets is complete first? It need not be the first bucket: keep for each how "
        "many gradients are missing.",
        "What may a hook start, if the order has to be the same on all ranks? Only the first bucket that has "
        "not started; and then perhaps the one after it.",
        "What is left for finish()? Start the buckets that no hook has started, with zeros for gradients "
        "that are not there; wait for all; divide; write back; count anew.",
        "What do hooks do within no_sync()? Nothing. contextlib.contextmanager makes such a method of a "
        "generator.",
    ),
)
def bucketed_ddp(answer: Answer, rng: Rng) -> Findings:
    """A small DistributedDataParallel: equal replicas, bucketed averages, overlap with backward."""
    yield "starts equal", starts_equal(answer, rng)

    training = draw_training(rng)
    observed = training.launch(answer)
    yield "averages", step_as_expected(training, observed, steps=range(1))
    yield "every step", step_as_expected(training, observed, steps=range(1, len(training.batches[0])))
    yield "buckets", buckets_as_specified(training, observed)
    early = starts_during_backward(training, observed)
    yield "starts during backward", early
    free = never_waits_in_backward(observed)
    yield "never waits in backward", free

    # Who starts late, or waits, anyway, or goes wrong with what is unused, is told so once.
    unused = unused_parameters(answer, rng, started=early.passed, together=free.passed)
    yield "unused parameters", unused
    yield "tied and frozen parameters", tied_and_frozen(answer, rng)
    silent = (silent_only(answer, rng, ranks) for ranks in (1, 2) if unused.passed)
    yield (
        "no_sync",
        compare.first_failure(chain([accumulated(answer, training, started=early.passed)], silent)),
    )


def starts_equal(answer: Answer, rng: Rng) -> Finding:
    """Passes if wrapping gives every rank rank 0's state, sent once, and the wrapper computes what the model
    does."""
    ranks = rng.integer(2, 4)
    values = [draw_normed(rng) for _ in range(ranks)]
    inputs = rng.normal(3, 5)
    observed = answer.launch(drivers.constructed, per_rank(values), inputs, ranks=ranks)
    replies = observed.results
    state = same_tensors("state", [reply.state for reply in replies], values[0], "rank 0's")
    moved = any(not reply.in_place for reply in replies)
    in_place = Finding(not moved, "Other tensors, or other memory, have taken the place of the model's own.")
    unrecorded = outside_of_autograd(any(reply.recorded for reply in replies))
    outputs, own = [reply.output for reply in replies], [reply.own_output for reply in replies]
    same = compare.close_on_all_ranks(outputs, own, "the wrapper's output")
    once = payload_of(observed, "broadcast", sum(value.nbytes for value in values[0]))
    return compare.first_failure((state, in_place, unrecorded, same, once), state.seen)


def step_as_expected(training: Training, observed: Observed[list[Gradients]], steps: range) -> Finding:
    """Passes if the gradients of these steps are the means over ranks."""
    means = training.mean_gradients
    by_rank = [[seen for seen, _ in compare.side_by_side(rank, means)] for rank in observed.results]
    for step in steps:
        seen = [rank[step] for rank in by_rank]
        finding = gradients_as(seen, [[*means[step]]] * len(seen), rtol=1e-4)
        if not finding.passed:
            return Finding(False, f"step {step}: {finding.seen}")
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return Finding(True, f"{which}: the gradients are the means over all ranks.")


def unused_parameters(answer: Answer, rng: Rng, started: bool, together: bool) -> Finding:
    """Passes if the averages are right where ranks use different branches, once all have used every one, and
    one branch none uses. started, together: whether it counts that complete buckets start in backward, and
    that those which are left are under way at once.
    """
    case = Used.draw(rng, rng.integer(2, 3))
    used = [[[ALL], [1 + rank % 2], [1 + (rank + 1) % 2]] for rank in range(len(case.inputs))]
    # One branch a bucket, so that which bucket is complete first differs from rank to rank; and two, of which
    # the shared layer is complete last and stands first, where the first step does not use all.
    turned = [way[::-1] for way in used]
    first = case.launch(answer, used, case.branch_bytes)
    second = case.launch(answer, turned, 2 * case.branch_bytes)
    right = compare.first_failure([case.right(used, first), case.right(turned, second)])
    return all_complete_started(first, used, started, together) if right.passed else right


COMPLETE = {ALL: 4, 2: 2, 1: 1}
"""How many buckets of one layer can start in a backward that uses this branch: the first is the shared
layer's and is complete last, the second the last branch's."""


def all_complete_started(
    observed: Observed[Any], used: Sequence[Sequence[list[int]]], started: bool, together: bool
) -> Finding:
    """Passes if backward has started every bucket that was complete and that no earlier one kept back, and
    no other.

    used[r][step]: the branch that rank r used. The order is that of make_buckets in every step: as long as
    the shared layer has no gradient, nothing may start. What is left starts at the end, before anything is
    waited for. started, together: see above.
    """
    for step in steps_of(observed, "finished"):
        [branch] = used[step.rank][step.number]
        reached = step.marks.get(REACHES_SHARED, step.marks["finished"]).sequence
        early = sum(call.sequence < reached for call in step.calls)
        if early:
            text = f"{compare.counted(early, 'call')} before the first bucket's gradients were complete"
            return Finding(False, f"{step}: {text}; the order of the buckets is the same in every step.")
        complete, ended = COMPLETE[branch], step.marks["backward ends"].sequence
        made = sum(call.sequence < ended for call in step.calls)
        if started and made < complete:
            text = f"when the first bucket was complete, {complete} could start, and {made} did in backward"
            return Finding(False, f"{step}: {text}.")
        left = [call for call in step.calls if call.sequence > ended]
        if together and any(later.start >= earlier.end for earlier, later in pairwise(left)):
            text = "finish() waits for one all_reduce before it starts the next"
            return Finding(False, f"{step}: {text}; expected all to be under way at once.")
    return Finding(True, "Buckets start in order, each when it and all before it are complete.")


def tied_and_frozen(answer: Answer, rng: Rng) -> Finding:
    """Passes if a parameter used twice is averaged and sent once, and frozen ones not at all."""
    ranks, words, width = rng.integer(2, 3), rng.integer(5, 8), rng.integer(3, 5)
    model = Tied(words, width)
    model.double()
    values = [
        [rng.normal(*parameter.shape, dtype=torch.float64) for parameter in model.parameters()]
        for _ in range(ranks)
    ]
    inputs = [rng.integers(0, words - 1, 6) for _ in range(ranks)]
    targets = [rng.integers(0, words - 1, 6) for _ in range(ranks)]
    given = (words, width), per_rank(values), per_rank(inputs), per_rank(targets), 10**6
    observed = answer.launch(drivers.tied, *given, ranks=ranks)
    load_values(list(model.parameters()), values[0])
    # In double precision: a bucket has the dtype of its gradients.
    expected = _tied_means(model, inputs, targets)
    finding = gradients_as(observed.results, expected, rtol=1e-10, atol=1e-12)
    if not finding.passed:
        return finding
    nbytes = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    payload = sum(
        call.nbytes for step in steps_of(observed, "finished") if step.rank == 0 for call in step.calls
    )
    if payload != nbytes:
        text = f"rank 0 gave all_reduce {payload:,} bytes; the trainable parameters have {nbytes:,}"
        return Finding(False, f"{text}, the tied one counted once.")
    return Finding(True, f"{nbytes:,} bytes: the tied parameter once, the frozen ones not at all.")


def _tied_means(model: Tied, inputs: list[Tensor], targets: list[Tensor]) -> list[Gradients]:
    """Each rank's gradients: the means over ranks, and of the frozen layer what the driver has put there,
    which is rank 0's weight. model: with rank 0's values; inputs, targets: [B] each.
    """
    pairs = zip(inputs, targets, strict=True)
    losses = [functional.cross_entropy(model(words), wanted) for words, wanted in pairs]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(torch.stack(losses).mean(), trainable)
    gradients = iter(found)
    for parameter, gradient in zip(trainable, found, strict=True):
        if parameter is model.mixing.bias:
            gradient[0] = torch.inf
    frozen = iter([model.frozen.weight.detach(), None])
    own = [next(gradients) if p.requires_grad else next(frozen) for p in model.parameters()]
    return [own] * len(inputs)


def starts_during_backward(training: Training, observed: Observed[Any]) -> Finding:
    """Passes if on every rank, in every step, each bucket set off as soon as its gradients were complete."""
    deadlines = training.deadlines()
    for step in steps_of(observed, "finished"):
        if not step.marks.keys() >= {reaches(0), *deadlines}:
            return Finding(False, f"{step}: backward did not go through the model that was wrapped.")
        for number, deadline in enumerate(deadlines, start=1):
            made = sum(call.sequence < step.marks[deadline].sequence for call in step.calls)
            if made < number:
                text = (
                    f"when {deadline}, {number} of {len(deadlines)} buckets are complete and {made} started"
                )
                return Finding(False, f"{step}: {text}.")
    return Finding(True, "Every bucket sets off as soon as its gradients are complete, on every rank.")
