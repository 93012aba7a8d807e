"""The grader of `Bucket`."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.cluster.topology import Cluster
from graders.grading.communication import steps_of
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
from graders.units.models import Gradients, load_values
from graders.units.unit_02.drivers import bucketed as drivers
from graders.units.unit_02.models import Branches, Chain, names_of, reaches, shapes_of
from graders.units.unit_02.steps import SLOW, gradients_as, never_waits_in_backward


@exercise(
    name="Bucket",
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "averages",
            2,
            "After finish() the gradients of the bucket's parameters are the means over ranks, and those of "
            "all others are as backward left them. Wait before you read what is under way.",
        ),
        Criterion(
            "every step",
            1,
            "What has been counted in one step must be back at its start for the next. Where .grad was not "
            "cleared, backward adds to it: the mean is of the sum.",
        ),
        Criterion(
            "one all_reduce",
            1,
            "Lay the bucket's gradients end to end, and send them together: one call a step. In whatever "
            "order they come, in each step another one, each has the same place on all ranks. And what one "
            "bucket keeps is its own: another one must not see it.",
            needs=("averages", "every step"),
        ),
        Criterion(
            "starts with the last gradient",
            1,
            "The hook that finds all gradients complete starts the all_reduce, whichever parameter's it is; "
            "finish() is too late.",
            needs=("one all_reduce",),
        ),
        Criterion(
            "never waits in backward",
            1,
            "all_reduce(..., async_op=True) returns a handle at once; only finish() calls its wait().",
            needs=("one all_reduce",),
        ),
    ),
    hints=(
        "How do you learn that a gradient is complete? p.register_post_accumulate_grad_hook(hook) calls "
        "hook(p) at that moment.",
        "How does a hook know that it is the last? Count how many gradients are still missing.",
        "What has to be kept from the hook to finish()? The flat tensor that is under way, and its handle.",
    ),
)
def bucket(answer: Answer, rng: Rng) -> Findings:
    """Three steps of a chain whose inner layers are in a bucket, on a link on which every call is slow; then
    two steps in which gradients come in different orders.
    """
    case = OneBucket.draw(rng)
    observed = case.launch(answer)
    yield "averages", case.averaged(observed, range(1))
    yield "every step", case.averaged(observed, range(1, 3))
    yield "one all_reduce", compare.first_failure([case.one_call(observed), in_any_order(answer, rng)])
    yield "starts with the last gradient", case.started(observed)
    yield "never waits in backward", never_waits_in_backward(observed)


@dataclass(frozen=True)
class OneBucket:
    """A chain of layers, of which some are in a bucket.

    values: of its parameters, the same on all ranks. batches[r]: inputs [B, widths[0]] and targets
    [B, widths[-1]], one a step; float64. Before the last step gradients are not cleared, but multiplied by 1
    on the first of three ranks, 2 on the second, 3 on the third: the mean is 2. One number is infinite then,
    one NaN, which has to be seen. chosen: the numbers of the parameters in the bucket, in the order given.
    """

    widths: list[int]
    values: list[Tensor]
    batches: list[list[tuple[Tensor, Tensor]]]
    chosen: list[int]

    @classmethod
    def draw(cls, rng: Rng) -> "OneBucket":
        """Three ranks. The bucket has the layers 1 and 2 of four; which is named first differs."""
        ranks = 3
        widths = [rng.integer(3, 6) for _ in range(5)]
        values = [_double(rng, *shape) for shape in shapes_of(widths)]
        batches = [
            [(_double(rng, 4, widths[0]), _double(rng, 4, widths[-1])) for _ in range(3)]
            for _ in range(ranks)
        ]
        # Backward completes 5 and 4 before 3 and 2: neither end of the list is the last to come.
        return cls(widths, values, batches, rng.choice([[4, 2, 3, 5], [5, 3, 2, 4]]))

    def launch(self, answer: Answer) -> Observed[list[Gradients]]:
        """Every collective outlasts backward, so that waiting for one shows."""
        ranks = len(self.batches)
        cluster = Cluster(devices_per_node=ranks, intra_node=SLOW)
        given = self.widths, self.values, per_rank(self.batches), self.chosen
        return answer.launch(drivers.one_bucket, *given, ranks=ranks, cluster=cluster)

    def averaged(self, observed: Observed[list[Gradients]], steps: range) -> Finding:
        """Passes if the bucket has the means in these steps, and all others the rank's own gradients."""
        expected = self._expected
        for step in steps:
            seen = [
                [got for got, _ in compare.side_by_side(rank, expected)][step] for rank in observed.results
            ]
            names = names_of(Chain(self.widths))
            finding = gradients_as(seen, expected[step], names, tolerance=1e-10)
            if not finding.passed:
                inside = ", ".join(names[number] for number in self.chosen)
                kept = step == len(expected) - 1
                text = f"step {step}, {inside} in the bucket{_KEPT if kept else ''}"
                return Finding(False, f"{text}: {finding.seen}")
        return Finding(True, "The bucket has the means over ranks, and the others stay as they are.")

    @cached_property
    def _expected(self) -> list[list[Gradients]]:
        """For each step and each rank all gradients."""
        model = Chain(self.widths)
        model.double()
        parameters = list(model.parameters())
        load_values(parameters, self.values)
        steps: list[list[list[Tensor]]] = []
        for batches in zip(*self.batches, strict=True):
            own = [
                torch.autograd.grad(functional.mse_loss(model(inputs), targets), parameters)
                for inputs, targets in batches
            ]
            means = [torch.stack(of_ranks).mean(0) for of_ranks in zip(*own, strict=True)]
            steps.append(
                [
                    [means[i] if i in self.chosen else each for i, each in enumerate(gradients)]
                    for gradients in own
                ]
            )
        steps[-1] = [
            [
                b + a * (2 if i in self.chosen else 1 + rank)
                for i, (a, b) in enumerate(zip(*both, strict=True))
            ]
            for rank, both in enumerate(zip(*steps[-2:], strict=True))
        ]
        for gradients in steps[-1]:
            broken = gradients[self.chosen[0]].view(-1)
            broken[0], broken[-1] = torch.inf, torch.nan
        return [[[*gradients] for gradients in step] for step in steps]

    def one_call(self, observed: Observed[list[Gradients]]) -> Finding:
        """Passes if every rank made one all_reduce of the bucket's bytes in every step."""
        nbytes = sum(self.values[number].nbytes for number in self.chosen)
        for step in steps_of(observed, "finished"):
            seen = [(call.op, call.nbytes) for call in step.calls]
            if seen != [("all_reduce", nbytes)]:
                made = ", ".join(f"{op} of {size} bytes" for op, size in seen) or "nothing"
                return Finding(False, f"{step}: {made}; expected one all_reduce of {nbytes} bytes.")
        calls, text = observed.calls(0), f"Every step makes one all_reduce of {nbytes} bytes"
        return Finding(len(calls) == len(self.batches[0]), f"{text}; rank 0 makes {len(calls)} calls in all.")

    def started(self, observed: Observed[list[Gradients]]) -> Finding:
        """Passes if the all_reduce was called before backward came to the layer before the bucket's."""
        for step in steps_of(observed, "finished"):
            begun = step.marks.get(reaches(0))
            if begun is None or not step.calls or step.calls[0].sequence >= begun.sequence:
                text = "the bucket was complete when backward reached layer 0, and its all_reduce not started"
                return Finding(False, f"{step}: {text}.")
        return Finding(True, "The all_reduce starts as soon as the bucket is complete, on every rank.")


_KEPT = " (.grad was not cleared before; rank r has r + 1 times as much of it, one number is inf, one NaN)"


def _double(rng: Rng, *shape: int) -> Tensor:
    return rng.normal(*shape, dtype=torch.float64)


def in_any_order(answer: Answer, rng: Rng) -> Finding:
    """Passes if the means are right of two layers that ranks use in different orders, and steps too, and
    those of two others in a second bucket, and of a scalar in a third.
    """
    width = rng.integer(3, 5)
    model = Branches(width)
    parameters = list(model.parameters())
    values, factor = [rng.normal(*parameter.shape) for parameter in parameters], rng.normal()
    inputs, orders = [rng.normal(4, width) for _ in range(2)], [[0, 2, 1], [1, 2, 0]]
    given = width, values, factor, per_rank(inputs), per_rank(orders)
    observed = answer.launch(drivers.in_order, *given, ranks=2)
    load_values(parameters, values)
    losses = [model(own, way).square().mean() for own in inputs for way in range(3)]
    loss = factor.requires_grad_() * torch.stack(losses).sum() / 2
    means: Gradients = [*torch.autograd.grad(loss, [*parameters, factor])]
    finding = gradients_as(observed.results, [means] * 2, [*names_of(model), "a scalar"])
    told = (
        "One bucket holds branches.0 and branches.1, another one branches.2 and the layer before all three, "
        "a third one a scalar, by which the loss is multiplied. "
        "In this step rank 0 used the branches in the order 0, 2, 1 and rank 1 in the order 1, 2, 0, and in "
        "the step before in the other order; branches.0.weight and its gradient are not contiguous"
    )
    return finding if finding.passed else Finding(False, f"{told}: {finding.seen}")
