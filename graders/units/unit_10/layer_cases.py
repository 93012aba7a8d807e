"""A layer of experts, of which each rank has some: what it is made of, and what should come of it."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Answer, Observed, Rng, compare, per_rank
from graders.units.models import sent
from graders.units.unit_10 import drivers
from graders.units.unit_10.cases import plan_of
from graders.units.unit_10.models import Whole, whole_layer

K, WIDTH, INNER = 2, 4, 3
PAIRS = ((0, 1), (2, 4), (3, 5))
"""A rank's place in its pair is neither its number modulo 2 nor which half of all ranks it is in."""


def _ranks(shapes: tuple[tuple[int, ...], ...]) -> str:
    told = compare.counted(len(shapes), "rank")
    return f"{told}, one without tokens" if (0,) in shapes else told


@dataclass(frozen=True, slots=True)
class Setting:
    """shapes: of each rank's tokens, but for D. own: experts of each rank. lonely: those that nobody chooses.
    factor: of capacity.
    """

    shapes: tuple[tuple[int, ...], ...] = feature(((9,), (7,), (4, 2)), _ranks)
    own: int = feature(2, "{} experts each")
    lonely: tuple[int, ...] = feature((), lambda own: f"nobody at experts {[*own]}" if own else "")
    factor: float | None = feature(None, lambda factor: f"capacity_factor={factor}" if factor else "")
    groups: tuple[tuple[int, int], ...] = feature((), lambda groups: "in groups" if groups else "")


@dataclass(frozen=True)
class Layer:
    """values: see `whole_layer`. x: of each rank."""

    case: Setting
    values: list[Tensor]
    x: list[Tensor]

    @classmethod
    def drawn(cls, rng: Rng, case: Setting) -> "Layer":
        count = case.own * (len(case.groups[0]) if case.groups else len(case.shapes))
        gate = rng.normal(count, WIDTH)
        # Where tokens are positive, what has negative weights comes last.
        gate[list(case.lonely)] = -gate[list(case.lonely)].abs() - 4
        expert_shapes = ((INNER, WIDTH), (INNER,), (WIDTH, INNER), (WIDTH,))
        experts = [rng.normal(*shape) for _ in range(count) for shape in expert_shapes]
        x = [rng.normal(*shape, WIDTH) for shape in case.shapes]
        return cls(case, [gate, *experts], [each.abs() for each in x] if case.lonely else x)

    def launch(self, answer: Answer) -> Observed[drivers.Told]:
        made = self.values, K, self.case.factor, [[*members] for members in self.case.groups]
        return answer.launch(drivers.layer, made, per_rank(self.x), ranks=len(self.x))

    def chosen(self, rank: int) -> Tensor:
        """The experts [N, k] of this rank's tokens."""
        logits = self.x[rank].reshape(-1, WIDTH) @ self.values[0].T
        return logits.topk(K, 1).indices

    def computed(self, whole: Whole, rank: int, x: Tensor) -> Tensor:
        """What the whole layer makes of a rank's tokens, without what is dropped."""
        x_ND, experts, factor = x.reshape(-1, WIDTH), self.chosen(rank), self.case.factor
        weights, count = whole.gate(x_ND).gather(1, experts).softmax(1), len(whole.experts)
        capacity = None if factor is None else math.ceil(factor * experts.numel() / count)
        order, _ = plan_of(experts, count, capacity)
        kept = torch.zeros(experts.numel()).index_fill(0, order, 1).view(experts.shape)
        of_experts = torch.stack([expert(x_ND) for expert in whole.experts])
        rows = of_experts[experts, torch.arange(len(x_ND))[:, None]]
        y_ND: Tensor = ((weights * kept)[:, :, None] * rows).sum(1)
        return y_ND.view(x.shape)

    @cached_property
    def expected(self) -> list[dict[str, Tensor]]:
        """Of each rank the result, and the gradients of x, of the gate and of its experts."""
        found: dict[int, dict[str, Tensor]] = {}
        every: Any = self.case.groups or [range(len(self.x))]
        for members in every:
            whole = whole_layer(self.values, K)
            leaves = [self.x[rank].clone().requires_grad_() for rank in members]
            results = [self.computed(whole, *each) for each in zip(members, leaves, strict=True)]
            for rank, result in zip(members, results, strict=True):
                torch.autograd.backward(sent(result, drivers.arriving(result, rank)))
            for place, (rank, leaf, result) in enumerate(zip(members, leaves, results, strict=True)):
                mine = whole.experts[place * self.case.own : (place + 1) * self.case.own]
                named = {"gate.weight": whole.gate.weight}
                named |= {f"experts.{name}": each for name, each in mine.named_parameters()}
                gradients = {name: drivers.gradient(each) / len(members) for name, each in named.items()}
                found[rank] = {"the result": result.detach(), "x": drivers.gradient(leaf), **gradients}
        return [found[rank] for rank in range(len(self.x))]
