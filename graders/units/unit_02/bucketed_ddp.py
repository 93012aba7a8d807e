"""The grader of `BucketedDDP`."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading import compare
from graders.grading.communication import payload_of, steps_of
from graders.grading.expected import same
from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, exercise, per_rank
from graders.units.models import Gradients, load_values
from graders.units.unit_02.broadcast_parameters import SEEN_BY_AUTOGRAD, Replicas, drawn_state
from graders.units.unit_02.drivers import bucketed as drivers
from graders.units.unit_02.models import Chain, Normed, Tied, names_of, reaches
from graders.units.unit_02.ordering import starts_in_order, unused_parameters
from graders.units.unit_02.silence import accumulated, silent_only
from graders.units.unit_02.steps import (
    Training,
    buckets_as_specified,
    draw_training,
    gradients_as,
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
            1,
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
            "in order",
            1,
            "Layers need not run in the order in which they are registered. A bucket starts when it and all "
            "before it are complete. So one hook may have to start several buckets: a loop, not an `if`.",
            needs=("averages", "every step", "buckets"),
        ),
        Criterion(
            "unused parameters",
            1,
            "A parameter that this rank's forward did not use has no hook call. finish() starts all buckets "
            "that have not started, in order and with zeros for it, before it waits for any. Afterwards it "
            "has a .grad like all others.",
            needs=("averages", "every step", "buckets", "in order"),
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
    in_order = starts_in_order(answer, rng, started=early.passed)
    yield "in order", in_order
    started = early.passed and in_order.passed
    unused = unused_parameters(answer, rng, started, together=free.passed)
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
    values = [drawn_state(rng, Replicas(buffers=True)) for _ in range(ranks)]
    inputs = rng.normal(3, 5)
    observed = answer.launch(drivers.constructed, per_rank(values), inputs, ranks=ranks)
    replies = observed.results
    names = [*names_of(Normed()), *(name for name, _ in Normed().named_buffers())]
    state = compare.first_failure(
        same(seen, wanted, f"{name} on rank {rank}", 0.0)
        for rank, reply in enumerate(replies)
        for seen, (name, wanted) in compare.side_by_side(reply.state, [*zip(names, values[0], strict=True)])
    )
    moved = any(not reply.in_place for reply in replies)
    in_place = Finding(not moved, "Other tensors, or other memory, have taken the place of the model's own.")
    unrecorded = Finding(not any(reply.recorded for reply in replies), SEEN_BY_AUTOGRAD)
    outputs, own = [reply.output for reply in replies], [reply.own_output for reply in replies]
    computes = compare.close_on_all_ranks(outputs, own, "the wrapper's output")
    once = payload_of(observed, "broadcast", sum(value.nbytes for value in values[0]))
    return compare.first_failure((state, in_place, unrecorded, computes, once), "All ranks start as rank 0.")


def step_as_expected(training: Training, observed: Observed[list[Gradients]], steps: range) -> Finding:
    """Passes if the gradients of these steps are the means over ranks."""
    means = training.mean_gradients
    by_rank = [[seen for seen, _ in compare.side_by_side(rank, means)] for rank in observed.results]
    for step in steps:
        seen = [rank[step] for rank in by_rank]
        names = names_of(Chain(training.widths))
        finding = gradients_as(seen, [[*means[step]]] * len(seen), names)
        if not finding.passed:
            return Finding(False, f"step {step}: {finding.seen}")
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return Finding(True, f"{which}: the gradients are the means over all ranks.")


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
    finding = gradients_as(observed.results, expected, names_of(model), tolerance=1e-10)
    if not finding.passed:
        of = "in float64, mixing.weight not contiguous, and of mixing.bias's gradient one number inf, one NaN"
        return Finding(False, f"{of}: {finding.seen}")
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
            gradient[0], gradient[-1] = torch.inf, torch.nan
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
