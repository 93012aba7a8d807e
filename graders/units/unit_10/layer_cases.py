"""Unit 10, cases for a layer of experts: what it is made of, what passes through it, and what should come."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from graders.grading.kit import Answer, Observed, Rng, per_rank
from graders.units.groups import members_of
from graders.units.models import sent
from graders.units.unit_10 import drivers
from graders.units.unit_10.cases import plan_of
from graders.units.unit_10.models import Whole, whole_layer
from graders.units.unit_10.replies import LayerReply

Replies = Observed[LayerReply]


@dataclass(frozen=True)
class Case:
    """values, frozen: see `whole_layer`. own: experts of each rank. batches: of each rank, one a step.

    learns: whether x needs a gradient.
    """

    values: list[Tensor]
    frozen: list[int]
    own: int
    k: int
    batches: list[list[Tensor]]
    factor: float | None
    gaps: bool
    learns: bool
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        ranks: int,
        own: int,
        k: int,
        shapes: Sequence[tuple[int, ...]],
        *,
        lonely: Sequence[int] = (),
        frozen: Sequence[int] = (),
        factor: float | None = None,
        dtype: torch.dtype = torch.float32,
        gaps: bool = False,
        learns: bool = True,
        groups: list[list[int]] | None = None,
    ) -> "Case":
        """shapes: of each rank's tokens, but for D; in the second step there are twice as many.
        lonely: experts that nobody chooses.
        """
        count, width, inner = own * (len(groups[0]) if groups else ranks), 4, 3
        gate = rng.normal(count, width, dtype=dtype)
        # Where tokens are positive, what has negative weights comes last.
        gate[list(lonely)] = -gate[list(lonely)].abs() - 4
        expert_shapes = ((inner, width), (inner,), (width, inner), (width,))
        experts = [rng.normal(*shape, dtype=dtype) for _ in range(count) for shape in expert_shapes]
        batches = [[rng.normal(*step, *shape, width, dtype=dtype) for step in ((), (2,))] for shape in shapes]
        if lonely:
            batches = [[batch.abs() for batch in own] for own in batches]
        return cls([gate, *experts], list(frozen), own, k, batches, factor, gaps, learns, groups or [])

    def launch(self, answer: Answer) -> Replies:
        made = (self.values, self.k, self.frozen, self.factor, self.groups)
        given = made, per_rank(self.batches), self.gaps, self.learns
        return answer.launch(drivers.layer, *given, ranks=len(self.batches))

    def members(self, rank: int) -> list[int]:
        return members_of(rank, len(self.batches), self.groups)

    def whole(self) -> Whole:
        return whole_layer(self.values, self.k, self.frozen)

    def chosen(self, logits: Tensor) -> Tensor:
        return logits.topk(self.k, 1).indices

    def computed(self, whole: Whole, x: Tensor) -> Tensor:
        """What the whole layer makes of a rank's tokens, without what is dropped."""
        x_ND = x.reshape(-1, x.shape[-1])
        logits = whole.gate(x_ND)
        count, experts = logits.shape[1], self.chosen(logits)
        weights = logits.gather(1, experts).softmax(1).flatten()
        choices = experts.numel()
        capacity = None if self.factor is None else math.ceil(self.factor * choices / count)
        order, counts = plan_of(experts, count, capacity)
        y_ND = 0 * x_ND
        for number, part in enumerate(torch.split(order, counts.tolist())):
            rows = whole.experts[number](x_ND[part // self.k])
            y_ND = y_ND.index_add(0, part // self.k, weights[part, None] * rows)
        return y_ND.view(x.shape)

    def results(self, rank: int) -> list[Tensor]:
        """Of both steps, and of the first batch again."""
        first, second = self.batches[rank]
        with torch.no_grad():
            made = [self.computed(self._whole, batch) for batch in (first, second)]
        return [*made, made[0]]

    @cached_property
    def _whole(self) -> Whole:
        """A layer that nobody changes."""
        return self.whole()

    @cached_property
    def gradients(self) -> list[dict[str, Tensor | None]]:
        """What each rank should have, group by group: of its x in each step, of the gate, of its experts."""
        return list(self._gradients())

    def _gradients(self) -> Iterator[dict[str, Tensor | None]]:
        for members in self.groups or [list(range(len(self.batches)))]:
            whole = self.whole()
            leaves = [
                [batch.clone().requires_grad_(self.learns) for batch in self.batches[rank]]
                for rank in members
            ]
            for rank, leaf in (
                (rank, leaf) for rank, own in zip(members, leaves, strict=True) for leaf in own
            ):
                result = self.computed(whole, leaf)
                torch.autograd.backward(sent(result, drivers.arriving(result, rank)))
            for place, own in enumerate(leaves):
                first = place * self.own
                layer = nn.ModuleDict(
                    {"gate": whole.gate, "experts": whole.experts[first : first + self.own]}
                )
                yield {
                    **{f"x of step {step}": leaf.grad for step, leaf in enumerate(own)},
                    **{
                        name: None if each.grad is None else each.grad / len(members)
                        for name, each in layer.named_parameters()
                    },
                }
