"""Steps of training with BucketedDDP: where they begin, where they lead, and when their calls were made."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.cluster.topology import Cluster, Link
from graders.grading.communication import steps_of
from graders.grading.expected import same
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.models import Gradients, load_values
from graders.units.unit_02.drivers import bucketed as drivers
from graders.units.unit_02.models import ALL, Branches, Chain, names_of, reaches, shapes_of

SLOW = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts the backward pass by far."""


@dataclass(frozen=True)
class Training:
    """Some steps of plain gradient descent on a chain of layers.

    values[r]: rank r's parameters before wrapping. batches[r]: its batches, one a step: inputs
    [B, widths[0]] and targets [B, widths[-1]].
    """

    widths: list[int]
    values: list[list[Tensor]]
    batches: list[list[tuple[Tensor, Tensor]]]
    rate: float
    bucket_bytes: int

    def launch(self, answer: Answer) -> Observed[list[Gradients]]:
        """Every collective outlasts backward, so that waiting for one shows."""
        ranks = len(self.values)
        cluster = Cluster(devices_per_node=ranks, intra_node=SLOW)
        return answer.launch(
            drivers.steps,
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
        return greedy_buckets(self._sizes, self.bucket_bytes)

    @property
    def _sizes(self) -> list[int]:
        """Bytes of the parameters, the last one first."""
        return [4 * prod(shape) for shape in shapes_of(self.widths)][::-1]

    def deadlines(self) -> list[str]:
        """For each bucket the mark before which its gradients are complete and it must have been started.

        Backward computes a layer's gradients between its mark and that of the layer before.
        """
        layers = [number for number in range(len(self.widths) - 1) for _ in ("weight", "bias")][::-1]
        ends = list(accumulate(self._sizes))
        lowest = [layers[ends.index(end)] for end in accumulate(self.buckets())]
        return [reaches(layer - 1) if layer else "backward ends" for layer in lowest]

    @cached_property
    def mean_gradients(self) -> list[list[Tensor]]:
        """For every step the mean gradients, of the parameters' shapes, from rank 0's values on."""
        model = Chain(self.widths)
        parameters = list(model.parameters())
        load_values(parameters, self.values[0])
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
    shapes = shapes_of(widths)
    values = [[rng.normal(*shape) for shape in shapes] for _ in range(ranks)]
    batches = [
        [(rng.normal(4, widths[0]), rng.normal(4, widths[-1])) for _ in range(3)] for _ in range(ranks)
    ]
    last_layer = 4 * (widths[-2] + 1) * widths[-1]
    return Training(widths, values, batches, rate=0.05, bucket_bytes=last_layer)


def gradients_as(
    seen: Sequence[Gradients], expected: Sequence[Gradients], names: Sequence[str], tolerance: float = 2e-5
) -> Finding:
    """Passes if each rank has the gradients expected of it, be it NaN, and none where None is expected.

    seen[r][i], expected[r][i]: rank r's of parameter i, in the order of model.parameters(), of its shape.
    names: of the parameters.
    """
    return compare.first_failure(
        (
            same(gradient, mean, f"the gradient of {name} on rank {rank}", tolerance)
            for rank, (own, means) in enumerate(zip(seen, expected, strict=True))
            for name, (gradient, mean) in zip(names, compare.side_by_side(own, means), strict=True)
        ),
        f"All gradients are as expected on {compare.counted(len(seen), 'rank')}.",
    )


def greedy_buckets(sizes: Sequence[int], limit: int) -> list[int]:
    """Bytes of each bucket: filled in order, closed before the size that would take it above the limit."""
    buckets: list[int] = []
    for size in sizes:
        if buckets and buckets[-1] + size <= limit:
            buckets[-1] += size
        else:
            buckets.append(size)
    return buckets


@dataclass(frozen=True, slots=True)
class Used:
    """A `Branches` in double precision of which each rank uses its own. values: of its parameters. inputs[r]:
    [B, width].
    """

    width: int
    values: list[Tensor]
    inputs: list[Tensor]

    @classmethod
    def draw(cls, rng: Rng, ranks: int) -> "Used":
        width = rng.integer(3, 5)
        double = torch.float64
        values = [rng.normal(*parameter.shape, dtype=double) for parameter in Branches(width).parameters()]
        return cls(width, values, [rng.normal(4, width, dtype=double) for _ in range(ranks)])

    @property
    def branch_bytes(self) -> int:
        return sum(value.nbytes for value in self.values[:2])

    def launch(
        self, answer: Answer, used: list[list[list[int]]], bucket_bytes: int
    ) -> Observed[list[Gradients]]:
        """used[r][step]: see `drivers.branches`."""
        given = self.width, self.values, per_rank(self.inputs), per_rank(used), bucket_bytes
        return answer.launch(drivers.branches, *given, ranks=len(self.inputs))

    def right(self, used: list[list[list[int]]], observed: Observed[list[Gradients]]) -> Finding:
        """Passes if after each step the gradients are the means over ranks of the sums of its branches."""
        model = Branches(self.width)
        parameters = list(model.double().parameters())
        load_values(parameters, self.values)
        steps = range(len(used[0]))
        by_rank = [[seen for seen, _ in compare.side_by_side(rank, steps)] for rank in observed.results]
        for step in steps:
            ways = [(own, branch) for own, way in zip(self.inputs, used, strict=True) for branch in way[step]]
            losses = [model(own, branch).square().mean() for own, branch in ways]
            total = torch.stack(losses).sum() / len(used)
            mean = [*torch.autograd.grad(total, parameters, materialize_grads=True)]
            seen = [rank[step] for rank in by_rank]
            finding = gradients_as(seen, [[*mean]] * len(used), names_of(model))
            if not finding.passed:
                told = [["all" if branch == ALL else branch for branch in way[step]] for way in used]
                silent = ", all but the last within no_sync" if len(told[0]) > 1 else ""
                text = f"step {step}, in which the ranks use these of three branches{silent}: {told}"
                return Finding(False, f"{text}: {finding.seen}")
        return Finding(True, "The gradients are the means over ranks, 0 where a rank has none.")


def buckets_as_specified(training: Training, observed: Observed[Any]) -> Finding:
    """Passes if every rank made one all_reduce a bucket, in order, and nothing else, in every step."""
    expected = [("all_reduce", nbytes) for nbytes in training.buckets()]
    wanted = _calls_in_words(expected)
    for step in steps_of(observed, "finished"):
        seen = [(call.op, call.nbytes) for call in step.calls]
        if seen != expected:
            return Finding(False, f"{step}: {_calls_in_words(seen)}; expected {wanted}.")
    return Finding(True, f"Every step makes {wanted}.")


def _calls_in_words(calls: Sequence[tuple[str, int]]) -> str:
    """ "2 all_reduce calls of 96, 40 bytes" """
    ops = ", ".join(sorted({op for op, _ in calls})) or "communication"
    sizes = ", ".join(str(nbytes) for _, nbytes in calls)
    return f"{len(calls)} {ops} calls of {sizes} bytes" if calls else "no communication"


def never_waits_in_backward(observed: Observed[Any]) -> Finding:
    """Passes if backward ended before the first all_reduce of its step did, on a slow link."""
    for step in steps_of(observed, "finished"):
        first = min((call.end for call in step.calls), default=float("inf"))
        ended = step.marks.get("backward ends", step.marks["finished"])
        if ended.end >= first:
            call = min(step.calls, key=lambda call: call.end)
            text = f"an {call.op} that backward called at {call.start:.2f} s was done at {call.end:.2f} s"
            return Finding(False, f"{step}: {text}, and backward went on only then: it waited for it.")
    return Finding(True, "Backward ends while the first all_reduce is still under way.")
