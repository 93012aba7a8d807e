"""Steps of training with DistributedOptimizer: what they should come to, and when their calls are due."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.cluster.topology import Cluster, Link
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.models import copies_of, gradients_of, load_values
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.drivers import optimizer as drivers
from graders.units.unit_04.models import Paths, reaches
from graders.units.unit_04.plan_fusion import expected_plan
from graders.units.unit_04.replies import StepReply

SLOW = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts the backward pass by far."""


@dataclass(frozen=True)
class Training:
    """Some steps on `Paths`.

    model: the arguments of Paths, by name. values: of the parameters, equal on all ranks. inputs[r][s][m]: of
    rank r in step s and micro-batch m, [B, width]; orders: the layers that it goes through, likewise.
    """

    model: dict[str, Any]
    values: list[Tensor]
    inputs: list[list[list[Tensor]]]
    orders: list[list[list[list[int]]]]
    passes: int
    threshold: int
    to_none: bool = True

    def launch(self, answer: Answer) -> Observed[list[StepReply]]:
        """Every collective outlasts backward, so that waiting for one shows."""
        options = {"passes": self.passes, "threshold": self.threshold, "lr": RATE, "to_none": self.to_none}
        ranks = len(self.inputs)
        return answer.launch(
            drivers.train,
            self.model,
            self.values,
            per_rank(self.inputs),
            per_rank(self.orders),
            options,
            ranks=ranks,
            cluster=Cluster(devices_per_node=ranks, intra_node=SLOW),
        )

    @property
    def steps(self) -> int:
        return len(self.inputs[0])

    def built(self) -> Paths:
        """The model as the driver builds it."""
        model = Paths(**self.model)
        load_values(model.parameters(), self.values)
        return model

    @cached_property
    def _planned(self) -> Paths:
        """A model of which nothing but its parameters' names and sizes is asked."""
        return self.built()

    @cached_property
    def messages(self) -> list[list[nn.Parameter]]:
        """The parameters of each message, of a model of its own."""
        trained = [parameter for parameter in self._planned.parameters() if parameter.requires_grad][::-1]
        sizes, dtypes = [each.nbytes for each in trained], [str(each.dtype) for each in trained]
        plan = expected_plan(sizes, dtypes, self.threshold)
        return [[trained[position] for position in message] for message in plan]

    @cached_property
    def expected(self) -> list[tuple[list[Tensor | None], list[Tensor]]]:
        """For each step the gradients, None for frozen parameters, and the parameters after it."""
        model = self.built()
        plain = PlainSGD(model.parameters(), RATE)
        found = []
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for step in range(self.steps):
            totals = [torch.zeros_like(parameter) for parameter in trained]
            for batches, orders in zip(self.inputs, self.orders, strict=True):
                plain.zero_grad()
                for batch, order in zip(batches[step], orders[step], strict=True):
                    model(batch, order).square().mean().backward()
                for total, parameter in zip(totals, trained, strict=True):
                    if parameter.grad is not None:
                        total += parameter.grad
            for total, parameter in zip(totals, trained, strict=True):
                parameter.grad = total / len(self.inputs)
            plain.step()
            gradients = gradients_of(model)
            found.append((gradients, copies_of(model.parameters())))
        return found

    def deadlines(self, rank: int, step: int) -> list[str]:
        """The mark before which each message must have been started on this rank; "stepped" if it lacks some
        gradient in this step, and so do all messages after it.

        Backward computes a layer's gradients between its mark and that of the layer before it.
        """
        model = self._planned
        layers = {id(p): number for number, layer in enumerate(model.layers) for p in layer.parameters()}
        paths = self.orders[rank][step]
        order, last = paths[-1][::-1], len(paths) - 1
        # A hook counts passes: a layer that some micro-batch leaves out is complete only in step().
        complete = [number for number in order if all(number in path for path in paths)]
        due = 0
        found: list[str] = []
        for message in self.messages:
            numbers = {layers[id(parameter)] for parameter in message}
            if found[-1:] == ["stepped"] or len(paths) < self.passes or numbers - set(complete):
                found.append("stepped")
                continue
            due = max(due, *(order.index(number) for number in numbers))
            last_one = due == len(order) - 1
            found.append(ends(last) if last_one else reaches(order[due + 1], last))
        return found


RATE = 0.05


def ends(micro_batch: int) -> str:
    """The driver's mark after a backward pass."""
    return f"backward {micro_batch} ends"


def draw_training(
    rng: Rng,
    layers: int = 4,
    passes: int = 1,
    dtypes: Sequence[str] = ("float32",),
    mixed_paths: bool = False,
    steps: int = 3,
    to_none: bool = True,
) -> Training:
    """Two to four ranks. The layers' order of execution is not that of their registration; with mixed_paths
    it differs from rank to rank and from step to step, and two layers of all are left out, one by all ranks.
    """
    ranks, width = rng.integer(2, 4), rng.integer(3, 5)
    kinds = [dtypes[number % len(dtypes)] for number in range(layers)]
    model: dict[str, Any] = {
        "width": width,
        "gains": [rng.integer(2, 30) for _ in range(layers)],
        "dtypes": kinds,
        "frozen": [],
        "tied": [],
    }
    everyone = _permutation(rng, layers)

    def path() -> list[int]:
        return _permutation(rng, layers)[: layers - 1] if mixed_paths else everyone

    orders = [[[path() for _ in range(passes)] for _ in range(steps)] for _ in range(ranks)]
    if mixed_paths:
        # Layer 0 has no gradient on any rank, in the first step.
        for rank in orders:
            rank[0] = [[number for number in path if number] for path in rank[0]]
    inputs = [
        [[rng.normal(3, width, dtype=torch.float64) for _ in range(passes)] for _ in range(steps)]
        for _ in range(ranks)
    ]
    sizes = [parameter.nbytes for parameter in Paths(**model).parameters()][::-1]
    # The first three, a whole layer, fill a message to the byte.
    threshold = sum(sizes[:3])
    return Training(model, _values(rng, model), inputs, orders, passes, threshold, to_none)


def _permutation(rng: Rng, count: int) -> list[int]:
    """0 .. count - 1, in another order than that and its reverse."""
    while True:
        order: list[int] = torch.randperm(count, generator=rng.generator).tolist()
        if order not in (list(range(count)), list(range(count))[::-1]):
            return order


def _values(rng: Rng, model: dict[str, Any]) -> list[Tensor]:
    return [rng.normal(*each.shape, dtype=each.dtype) / 2 for each in Paths(**model).parameters()]


def draw_tied(rng: Rng) -> Training:
    """Layer 2 is frozen, but for its weight, which like layer 1's is layer 0's."""
    drawn = draw_training(rng, steps=2)
    model = {**drawn.model, "frozen": [2], "tied": [1, 2]}
    threshold = rng.choice((10**6, 60))
    return Training(model, _values(rng, model), drawn.inputs, drawn.orders, 1, threshold)


def all_close(seen: Sequence[Tensor | None], expected: Sequence[Tensor | None], what: str) -> Finding:
    """Passes if tensors are as expected, each as exactly as its dtype is; None is a frozen parameter's."""

    def one(number: int, got: Tensor | None, wanted: Tensor | None) -> Finding:
        if wanted is None:
            return compare.equal(got, None, f"{what} {number}, which is frozen,")
        rtol = {torch.float64: 1e-9, torch.float32: 1e-4}.get(wanted.dtype, 0.05)
        return compare.close(got, wanted, f"{what} {number}", rtol, rtol / 10)

    return compare.first_failure(
        one(number, *pair) for number, pair in enumerate(compare.side_by_side(seen, expected))
    )
