"""Unit 10, cases for a layer of experts: what it is made of, what passes through it, and what should come."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.groups import members_of
from graders.units.models import sent
from graders.units.passes import bytes_in_passes, calls_in_passes
from graders.units.unit_10 import drivers
from graders.units.unit_10.cases import plan_of
from graders.units.unit_10.models import Whole, whole_layer
from graders.units.unit_10.pairs import pair
from graders.units.unit_10.replies import LayerReply

Replies = Observed[LayerReply]
PASSES = ("making", *("forward", "backward") * 2, "average", "forward under no_grad")
ONE_WAY = ["all_to_all_single"]


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

    def outputs(self, run: Replies) -> Finding:
        expected = list(map(self.results, range(len(self.batches))))
        return compare.first_failure(
            compare.close_on_all_ranks(
                [reply.results[step] for reply in run.results],
                [each[step] for each in expected],
                f"the result {what}",
                1e-4,
                1e-5,
            )
            for step, what in enumerate(("of step 0", "of step 1", "under no_grad"))
        )

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

    def of_kind(self, run: Replies, x: bool) -> Finding:
        """Passes if the gradients of x, or those of the parameters, are right on all ranks."""
        groups = self.groups or [list(range(len(self.batches)))]
        ranks = [rank for group in groups for rank in group]
        return compare.first_failure(
            self.gradient(
                run.results[rank].gradients.get(name), wanted, f"the gradient of {name} on rank {rank}"
            )
            for rank, expected in zip(ranks, self.gradients, strict=True)
            for name, wanted in expected.items()
            if name.startswith("x of") == x
        )

    def gradient(self, seen: Tensor | None, wanted: Tensor | None, what: str) -> Finding:
        """Zeros and no gradient are the same here."""
        if wanted is None or (seen is None and not wanted.any()):
            return Finding(seen is None or not seen.any(), f"{what} is {compare.shown(seen)}; expected none.")
        return compare.close(seen, wanted, what, 1e-4, 1e-5)

    def gradients_of_x(self, run: Replies) -> Finding:
        return self.of_kind(run, x=True)

    def averaged(self, run: Replies) -> Finding:
        """Passes if the parameters' gradients are right, in the tensors in which they were."""
        replaced = (
            compare.equal(reply.replaced, [], f"whose .grad on rank {rank} is another tensor than before")
            for rank, reply in enumerate(run.results)
        )
        return compare.first_failure((self.of_kind(run, x=False), *replaced))

    def all_right(self, run: Replies) -> Finding:
        left = (
            compare.equal(reply.x, batches[-1], "x afterwards")
            for reply, batches in zip(run.results, self.batches, strict=True)
        )
        return compare.first_failure(
            (self.outputs(run), *map(self.of_kind, (run, run), (True, False)), *left)
        )

    def parameters(self, run: Replies) -> Finding:
        """Passes if every rank has copies of the gate and of its experts, and nothing else."""
        count = len(self.values[1:]) // len(self.values[0])
        kept = self.values[0].nbytes + sum(each.nbytes for each in self.values[1 : 1 + count * self.own])
        parts = [f"{name}.{kind}" for name in ("up", "down") for kind in ("weight", "bias")]
        names = sorted(["gate.weight", *(f"experts.{n}.{part}" for n in range(self.own) for part in parts)])
        findings = (
            (
                compare.equal(reply.names, names, f"the parameters' names on rank {rank}"),
                compare.at_most(reply.kept, kept, f"Bytes in memory by rank {rank}'s layer"),
                compare.equal(reply.changed, [], "what is no longer as it was with the layer given"),
            )
            for rank, reply in enumerate(run.results)
        )
        return compare.first_failure(each for of_rank in findings for each in of_rank)

    def routing(self, run: Replies) -> Finding:
        """Passes if probabilities and choices are right, and the gate can learn from the probabilities."""
        findings = []
        for rank, (reply, batches) in enumerate(zip(run.results, self.batches, strict=True)):
            steps = zip(reply.routing, (*batches, batches[0]), (True, True, False), strict=True)
            for (seen, learnt), batch, learns in steps:
                gate = self.whole().gate
                probabilities = gate(batch.reshape(-1, batch.shape[-1])).softmax(1)
                (gradient,) = torch.autograd.grad((probabilities**2).sum() / 2, gate.weight)
                found, wanted = pair(seen), (probabilities.detach(), self.chosen(probabilities.detach()))
                for part, what in enumerate(("probabilities", "experts")):
                    name = f"the {what} of routing{'' if learns else ' under no_grad'} on rank {rank}"
                    findings.append(compare.close(found[part], wanted[part], name))
                if learns:
                    name = f"the gradient of the gate by routing's probabilities on rank {rank}"
                    findings.append(compare.close(learnt, gradient, name))
        return compare.first_failure(findings)

    def communication(self, run: Replies) -> list[Finding]:
        """The calls that are needed, of rows as x has them; and the all-reduce is of the gate's gradient."""
        ranks = range(len(self.batches))
        count, row = len(self.values[0]), self.batches[0][0].shape[-1] * self.values[0].element_size()
        sent = []  # of each step and rank, bytes of the rows that it gives to the calls of both passes
        for step in (0, 1):
            chosen = [
                self.chosen(each[step].reshape(-1, 4) @ self.values[0].T).flatten() for each in self.batches
            ]
            there = [len(each) for each in chosen]
            here = [sum(int((each // self.own == rank).sum()) for each in chosen) for rank in ranks]
            both = zip(there, here, strict=True)
            sent.append([(row * (a + b) + 8 * count, row * (a + b * self.learns)) for a, b in both])
        limits = [
            [0, *(n for of_step in sent for n in of_step[rank]), self.values[0].nbytes] for rank in ranks
        ]
        backward, averaged = ONE_WAY * (1 + self.learns), ["all_reduce"] * (0 not in self.frozen)
        expected = [[], *([ONE_WAY * 3, backward] * 2), averaged, ONE_WAY * 3]
        return [calls_in_passes(run, PASSES, expected), bytes_in_passes(run, PASSES, limits)]

    def rows(self, run: Replies) -> Finding:
        """Passes if each expert was called once in each forward, with all rows that are for it."""
        findings = []
        for rank, reply in enumerate(run.results):
            members = self.members(rank)
            for place, seen in enumerate(reply.rows):
                number = members.index(rank) * self.own + place
                wanted = []
                for step in (0, 1, 0):
                    chosen = [
                        self.chosen(self.batches[o][step].reshape(-1, 4) @ self.values[0].T) for o in members
                    ]
                    wanted.append(sum(int((each == number).sum()) for each in chosen))
                findings.append(compare.equal(seen, wanted, f"rows of each call of expert {number}"))
        return compare.first_failure(findings)
