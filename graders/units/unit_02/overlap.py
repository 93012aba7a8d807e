"""Unit 02, the same gradient while backward still computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.request import per_rank
from graders.grading import compare
from graders.grading.answer import Answer, Observed
from graders.grading.exercise import Criterion, Finding, Findings, exercise
from graders.grading.rng import Rng
from graders.units.unit_02 import UNIT
from graders.units.unit_02 import drivers as drivers
from graders.units.unit_02.averaging import (
    _gradients_as,
)
from graders.units.unit_02.overlap_steps import _steps, never_waits_in_backward, starts_during_backward
from graders.units.unit_02.replicas import draw_normed, same_tensors


@exercise(
    unit=UNIT,
    name="BucketedDDP",
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(
            "starts equal",
            1,
            "The constructor broadcasts rank 0's parameters and buffers, and forward hands on to the model.",
        ),
        Criterion(
            "averages",
            2,
            "After finish() every p.grad is the mean over ranks, as with average_gradients. Wait for each "
            "all_reduce before you read its bucket, and write the result back.",
        ),
        Criterion(
            "every step",
            1,
            "What the hooks count in one step must be back at its start for the next: reset it in finish().",
        ),
        Criterion(
            "buckets",
            1,
            "Go through the trainable parameters in reverse, and close a bucket before the parameter that "
            "would take it above bucket_bytes. One all_reduce a bucket.",
        ),
        Criterion(
            "starts during backward",
            2,
            "The hook of a bucket's last gradient starts its all_reduce, for every bucket; do not leave it "
            "to a later hook, or to finish().",
        ),
        Criterion(
            "never waits in backward",
            1,
            "all_reduce(..., async_op=True) returns a handle at once; only finish() calls its wait().",
        ),
        Criterion(
            "unused parameters",
            1,
            "A parameter that this rank's forward did not use has no hook call. finish() starts what has not "
            "started, with zeros for it; and every rank must start its buckets in the same order.",
        ),
        Criterion(
            "tied and frozen parameters",
            1,
            "model.parameters() yields a tied parameter once; a frozen one is in no bucket and has no hook.",
        ),
    ),
    hints=(
        "Fill the buckets in the constructor, a list of lists of parameters; note each parameter's bucket.",
        "p.register_post_accumulate_grad_hook(hook) calls hook(p) as soon as p.grad is complete.",
        "Keep the number of gradients that each bucket still waits for, and the index of the next bucket to "
        "start. A hook counts down, then starts buckets as long as the next one waits for nothing.",
        "Starting bucket i + 1 only after bucket i keeps the order the same on every rank.",
        "finish(): start the buckets that are left, wait for all, divide, copy back, reset the counts.",
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
    yield "starts during backward", starts_during_backward(training, observed)
    yield "never waits in backward", never_waits_in_backward(observed)

    yield "unused parameters", unused_parameters(answer, rng)
    yield "tied and frozen parameters", tied_and_frozen(answer, rng)


def starts_equal(answer: Answer, rng: Rng) -> Finding:
    """Passes if wrapping gives every rank rank 0's state, and the wrapper computes what the model does."""
    ranks = rng.integer(2, 4)
    values = [draw_normed(rng) for _ in range(ranks)]
    inputs = rng.normal(3, 5)
    observed = answer.launch("unit_02.constructed", per_rank(values), inputs, ranks=ranks)
    finding = same_tensors(observed, "state", values[0], "rank 0's")
    if not finding.passed:
        return finding
    outputs = [rank["output"] for rank in observed.results]
    own = [rank["own_output"] for rank in observed.results]
    same = compare.close_on_all_ranks(outputs, own, "the wrapper's output")
    return finding if same.passed else same


@dataclass(frozen=True, slots=True)
class Training:
    """Some steps of plain gradient descent on a chain of layers.

    values[r]: rank r's parameters before wrapping. batches[r]: its batches, one a step.
    """

    widths: list[int]
    values: list[list[Tensor]]
    batches: list[list[tuple[Tensor, Tensor]]]
    rate: float
    bucket_bytes: int

    def launch(self, answer: Answer) -> Observed:
        """Every collective outlasts backward, so that waiting for one shows."""
        ranks = len(self.values)
        cluster = Cluster(devices_per_node=ranks, intra_node=SLOW)
        return answer.launch(
            "unit_02.steps",
            self.widths,
            per_rank(self.values),
            per_rank(self.batches),
            self.rate,
            self.bucket_bytes,
            ranks=ranks,
            cluster=cluster,
        )

    def buckets(self) -> list[int]:
        """Bytes of each bucket."""
        sizes = [parameter.nbytes for parameter in drivers.Chain(self.widths).parameters()]
        return greedy_buckets(sizes[::-1], self.bucket_bytes)

    def deadlines(self) -> list[str]:
        """For each bucket the mark before which its gradients are complete and it must have been started.

        Backward computes a layer's gradients between its mark and that of the layer before.
        """
        layers = [number for number in range(len(self.widths) - 1) for _ in ("weight", "bias")][::-1]
        sizes = [parameter.nbytes for parameter in drivers.Chain(self.widths).parameters()][::-1]
        ends = list(accumulate(sizes))
        lowest = [layers[ends.index(end)] for end in accumulate(self.buckets())]
        return [drivers.reaches(layer - 1) if layer else "backward ends" for layer in lowest]

    def mean_gradients(self) -> list[list[Tensor]]:
        """For every step the mean over ranks of their gradients, from rank 0's parameters on."""
        model = drivers.Chain(self.widths)
        parameters = list(model.parameters())
        drivers.load_values(parameters, self.values[0])
        means = []
        for batches in zip(*self.batches, strict=True):
            losses = [functional.mse_loss(model(inputs), targets) for inputs, targets in batches]
            gradients = torch.autograd.grad(torch.stack(losses).mean(), parameters)
            means.append(list(gradients))
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=self.rate)
        return means


def draw_training(rng: Rng) -> Training:
    """Two to four ranks, three steps; the last layer fills a bucket to the byte, one weight is too large."""
    ranks = rng.integer(2, 4)
    widths = [rng.integer(5, 8), 9, 9, rng.integer(5, 8), rng.integer(5, 8)]
    shapes = [parameter.shape for parameter in drivers.Chain(widths).parameters()]
    values = [[rng.normal(*shape) for shape in shapes] for _ in range(ranks)]
    batches = [
        [(rng.normal(4, widths[0]), rng.normal(4, widths[-1])) for _ in range(3)] for _ in range(ranks)
    ]
    last_layer = 4 * (widths[-2] + 1) * widths[-1]
    return Training(widths, values, batches, rate=0.05, bucket_bytes=last_layer)


def step_as_expected(training: Training, observed: Observed, steps: range) -> Finding:
    """Passes if the gradients of these steps are the means over ranks."""
    means = training.mean_gradients()
    for step in steps:
        seen = [rank[step] for rank in observed.results]
        finding = _gradients_as(seen, [means[step]] * len(seen), rtol=1e-4)
        if not finding.passed:
            return Finding(False, f"step {step}: {finding.seen}")
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return Finding(True, f"{which}: the gradients are the means over all ranks.")


def greedy_buckets(sizes: Sequence[int], limit: int) -> list[int]:
    """Bytes of each bucket: filled in order, closed before the size that would take it above the limit."""
    buckets: list[int] = []
    for size in sizes:
        if buckets and buckets[-1] + size <= limit:
            buckets[-1] += size
        else:
            buckets.append(size)
    return buckets


def buckets_as_specified(training: Training, observed: Observed) -> Finding:
    """Passes if every rank made one all_reduce a bucket, in order, and nothing else, in every step."""
    expected = [("all_reduce", nbytes) for nbytes in training.buckets()]
    wanted = _calls_in_words(expected)
    for step in _steps(observed):
        seen = [(call.op, call.nbytes) for call in step.calls]
        if seen != expected:
            return Finding(False, f"{step}: {_calls_in_words(seen)}; expected {wanted}.")
    return Finding(True, f"Every step makes {wanted}.")


def _calls_in_words(calls: Sequence[tuple[str, int]]) -> str:
    """ "2 all_reduce calls of 96, 40 bytes" """
    ops = ", ".join(sorted({op for op, _ in calls})) or "communication"
    sizes = ", ".join(str(nbytes) for _, nbytes in calls)
    return f"{len(calls)} {ops} calls of {sizes} bytes" if calls else "no communication"


def unused_parameters(answer: Answer, rng: Rng) -> Finding:
    """Passes if the averages are right where ranks use different branches, and one branch none uses."""
    ranks, width = rng.integer(2, 3), rng.integer(3, 5)
    model = drivers.Branches(width)
    parameters = list(model.parameters())
    values = [rng.normal(*parameter.shape) for parameter in parameters]
    inputs = [rng.normal(4, width) for _ in range(ranks)]
    used = [[rank % 2, (rank + 1) % 2] for rank in range(ranks)]
    # One branch a bucket, so that which bucket is complete first differs from rank to rank.
    bucket_bytes = 4 * (width * width + width)
    observed = answer.launch(
        "unit_02.branches", width, values, per_rank(inputs), per_rank(used), bucket_bytes, ranks=ranks
    )
    drivers.load_values(parameters, values)
    finding = Finding(False, "")
    for step in range(2):
        losses = [model(own, way[step]).square().mean() for own, way in zip(inputs, used, strict=True)]
        mean = torch.autograd.grad(torch.stack(losses).mean(), parameters, materialize_grads=True)
        seen = [rank[step] for rank in observed.results]
        finding = _gradients_as(seen, [mean] * ranks, rtol=1e-4)
        if not finding.passed:
            break
    return finding


def tied_and_frozen(answer: Answer, rng: Rng) -> Finding:
    """Passes if a parameter used twice is averaged and sent once, and frozen ones not at all."""
    ranks, words, width = rng.integer(2, 3), rng.integer(5, 8), rng.integer(3, 5)
    model = drivers.Tied(words, width)
    values = [[rng.normal(*parameter.shape) for parameter in model.parameters()] for _ in range(ranks)]
    inputs = [rng.integers(0, words - 1, 6) for _ in range(ranks)]
    targets = [rng.integers(0, words - 1, 6) for _ in range(ranks)]
    observed = answer.launch(
        "unit_02.tied",
        (words, width),
        per_rank(values),
        per_rank(inputs),
        per_rank(targets),
        10**6,
        ranks=ranks,
    )
    drivers.load_values(list(model.parameters()), values[0])
    finding = _gradients_as(observed.results, [_tied_mean(model, inputs, targets)] * ranks, rtol=1e-4)
    if not finding.passed:
        return finding
    expected = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    payload = sum(call.nbytes for call in next(_steps(observed)).calls)
    if payload != expected:
        text = f"rank 0 gave all_reduce {payload:,} bytes; the trainable parameters have {expected:,}"
        return Finding(False, f"{text}, the tied one counted once.")
    return Finding(True, f"{expected:,} bytes: the tied parameter once, the frozen ones not at all.")


def _tied_mean(model: nn.Module, inputs: list[Tensor], targets: list[Tensor]) -> list[Tensor | None]:
    """The mean over ranks of the gradients, None for frozen parameters."""
    pairs = zip(inputs, targets, strict=True)
    losses = [functional.cross_entropy(model(words), wanted) for words, wanted in pairs]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = iter(torch.autograd.grad(torch.stack(losses).mean(), trainable))
    return [next(gradients) if parameter.requires_grad else None for parameter in model.parameters()]


SLOW = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts the backward pass by far."""
