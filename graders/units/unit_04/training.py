"""Steps of training with DistributedOptimizer: what they should come to, and when their calls are due."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from graders.grading.judging import feature
from graders.grading.kit import Finding, Rng, compare
from graders.units.models import copies_of, gradients_of, load_values
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.models import Paths, reaches
from graders.units.unit_04.plan_fusion import expected_plan

RATE = 0.05


@dataclass(frozen=True, slots=True)
class Course:
    """How a training goes.

    mixed: whether ranks go through other layers in each step, in orders of their own. shared: whether
    a layer is frozen, and parameters have two names.
    """

    ranks: int = feature(3, "{} ranks")
    steps: int = feature(1, lambda steps: compare.counted(steps, "step"))
    passes: int = feature(1, lambda passes: "" if passes == 1 else f"{passes} backward passes a step")
    fused: bool = feature(False, lambda fused: "one message" if fused else "messages of about a layer")
    dtypes: tuple[str, ...] = feature(("float32",), lambda dtypes: " and ".join(dtypes))
    mixed: bool = feature(False, lambda mixed: "other layers on each rank, in each step" if mixed else "")
    shared: bool = feature(False, lambda shared: "tied and frozen parameters" if shared else "")


@dataclass(frozen=True)
class Training:
    """Some steps on `Paths`.

    model: the arguments of Paths, by name. values: of the parameters, equal on all ranks. inputs[r][s][m]: of
    rank r in step s and micro-batch m, [B, width]; orders: the layers that it goes through, likewise. passes:
    that are planned.
    """

    model: dict[str, Any]
    values: list[Tensor]
    inputs: list[list[list[Tensor]]]
    orders: list[list[list[list[int]]]]
    passes: int
    threshold: int

    def of_rank(self, rank: int) -> list[Any]:
        """What the driver needs to train."""
        options = {"passes": self.passes, "threshold": self.threshold, "lr": RATE}
        return [self.model, self.values, self.inputs[rank], self.orders[rank], options]

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
        """The mark before which each message must have been started on this rank.

        Backward computes a layer's gradients between its mark and that of the layer before it.
        """
        model = self._planned
        layers = {id(p): number for number, layer in enumerate(model.layers) for p in layer.parameters()}
        order = self.orders[rank][step][-1][::-1]
        due, found = 0, []
        for message in self.messages:
            due = max(due, *(order.index(layers[id(parameter)]) for parameter in message))
            last_one = due == len(order) - 1
            found.append(ends(self.passes - 1) if last_one else reaches(order[due + 1], self.passes - 1))
        return found


def ends(micro_batch: int) -> str:
    """The driver's mark after a backward pass."""
    return f"backward {micro_batch} ends"


def drawn(rng: Rng, course: Course) -> Training:
    """Such a training. The layers' order of execution is not that of their registration; if it is mixed, it
    differs from rank to rank and from step to step, and two layers of all are left out, one by all ranks.
    """
    layers, width = 5 if course.mixed else 4, rng.integer(3, 5)
    model: dict[str, Any] = {
        "width": width,
        "gains": [rng.integer(2, 30) for _ in range(layers)],
        "dtypes": [course.dtypes[number % len(course.dtypes)] for number in range(layers)],
        # Layer 2 is frozen, but for its weight, which like layer 1's is layer 0's.
        "frozen": [2] if course.shared else [],
        "tied": [1, 2] if course.shared else [],
    }
    everyone = _permutation(rng, layers)
    orders = [
        [
            [_permutation(rng, layers)[:-1] if course.mixed else everyone for _ in range(course.passes)]
            for _ in range(course.steps)
        ]
        for _ in range(course.ranks)
    ]
    if course.mixed:
        for of_rank in orders:
            of_rank[0] = [[number for number in path if number] for path in of_rank[0]]
    inputs = [
        [
            [rng.normal(3, width, dtype=torch.float64) for _ in range(course.passes)]
            for _ in range(course.steps)
        ]
        for _ in range(course.ranks)
    ]
    parameters = list(Paths(**model).parameters())
    values = [rng.normal(*each.shape, dtype=each.dtype) / 2 for each in parameters]
    # The first three, a whole layer, fill a message to the byte.
    layer = sum(value.nbytes for value in values[:-4:-1])
    threshold = 128 * 2**20 if course.fused else layer
    return Training(model, values, inputs, orders, course.passes, threshold)


def _permutation(rng: Rng, count: int) -> list[int]:
    """0 .. count - 1, in another order than that and its reverse."""
    while True:
        order: list[int] = torch.randperm(count, generator=rng.generator).tolist()
        if order not in (list(range(count)), list(range(count))[::-1]):
            return order


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
