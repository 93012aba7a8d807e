"""Cases for a layer of experts: what it is made of, what passes through it, and what should come."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graders.grading.kit import Answer, Observed, Rng, per_rank
from graders.units.groups import members_of
from graders.units.models import sent
from graders.units.unit_10 import drivers
from graders.units.unit_10.cases import plan_of
from graders.units.unit_10.drivers import LayerReply
from graders.units.unit_10.models import Whole, whole_layer

Replies = Observed[LayerReply]
PAIRS = [[0, 1], [2, 4], [3, 5]]
"""A rank's place in its pair is neither its number modulo 2 nor which half of all ranks it is in."""


@dataclass(frozen=True)
class Case:
    """values: see `whole_layer`. own: experts of each rank. x: of each rank."""

    values: list[Tensor]
    own: int
    x: list[Tensor]
    factor: float | None
    groups: list[list[int]]
    k: int = 2

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        own: int,
        shapes: Sequence[tuple[int, ...]],
        *,
        lonely: Sequence[int] = (),
        factor: float | None = None,
        groups: Sequence[list[int]] = (),
    ) -> "Case":
        """shapes: of each rank's tokens, but for D. lonely: experts that nobody chooses."""
        count, width, inner = own * (len(groups[0]) if groups else len(shapes)), 4, 3
        gate = rng.normal(count, width)
        # Where tokens are positive, what has negative weights comes last.
        gate[list(lonely)] = -gate[list(lonely)].abs() - 4
        expert_shapes = ((inner, width), (inner,), (width, inner), (width,))
        experts = [rng.normal(*shape) for _ in range(count) for shape in expert_shapes]
        x = [rng.normal(*shape, width) for shape in shapes]
        return cls([gate, *experts], own, [each.abs() for each in x] if lonely else x, factor, list(groups))

    def launch(self, answer: Answer) -> Replies:
        made = self.values, self.k, self.factor, self.groups
        return answer.launch(drivers.layer, made, per_rank(self.x), ranks=len(self.x))

    def members(self, rank: int) -> list[int]:
        return members_of(rank, len(self.x), self.groups)

    def chosen(self, rank: int) -> Tensor:
        """The experts [N, k] of this rank's tokens."""
        logits = self.x[rank].reshape(-1, 4) @ self.values[0].T
        return logits.topk(self.k, 1).indices

    def computed(self, whole: Whole, rank: int, x: Tensor) -> Tensor:
        """What the whole layer makes of a rank's tokens, without what is dropped."""
        x_ND, experts = x.reshape(-1, 4), self.chosen(rank)
        logits = whole.gate(x_ND)
        count = logits.shape[1]
        weights = logits.gather(1, experts).softmax(1).flatten()
        capacity = None if self.factor is None else math.ceil(self.factor * experts.numel() / count)
        order, counts = plan_of(experts, count, capacity)
        y_ND = 0 * x_ND
        for number, part in enumerate(torch.split(order, counts.tolist())):
            rows = whole.experts[number](x_ND[part // self.k])
            y_ND = y_ND.index_add(0, part // self.k, weights[part, None] * rows)
        return y_ND.view(x.shape)

    @cached_property
    def expected(self) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """Of each rank the result, and the gradients: of x, of the gate, of its experts."""
        found: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
        for members in self.groups or [[*range(len(self.x))]]:
            whole = whole_layer(self.values, self.k)
            leaves = [self.x[rank].clone().requires_grad_() for rank in members]
            results = [self.computed(whole, *each) for each in zip(members, leaves, strict=True)]
            for rank, result in zip(members, results, strict=True):
                torch.autograd.backward(sent(result, drivers.arriving(result, rank)))
            for place, (rank, leaf, result) in enumerate(zip(members, leaves, results, strict=True)):
                mine = whole.experts[place * self.own : (place + 1) * self.own]
                named = {f"experts.{name}": _grad(each) for name, each in mine.named_parameters()}
                named["gate.weight"] = _grad(whole.gate.weight)
                averages = {name: each / len(members) for name, each in named.items()}
                found[rank] = result.detach(), {**averages, "x": _grad(leaf)}
        return [found[rank] for rank in range(len(self.x))]


def _grad(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
