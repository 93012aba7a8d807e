"""Unit 09, the norm of gradients of which nobody has all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch
from torch import Tensor

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    communication,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_09 import drivers
from graders.units.unit_09.replies import NormReply


@exercise(
    name="clip_grad_norm",
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "the norm",
            2,
            "The root of the sum of the squares of all ranks' gradients. Norms cannot be added; "
            "their squares can, in float32: bfloat16 has three digits.",
        ),
        Criterion(
            "scaled down",
            2,
            "Multiply every gradient by max_norm / norm in place, with the norm of all ranks. PyTorch's own "
            "adds something to the norm; here nothing is added. What can be gone through once, such as "
            "shards, is empty the second time.",
        ),
        Criterion(
            "left alone",
            1,
            "Only a norm larger than max_norm changes anything: not one of zero, nor one that is NaN.",
            needs=("the norm", "scaled down"),
        ),
        Criterion(
            "ranks without gradients",
            1,
            "A rank may have no shards, an empty one, or none with a gradient: it takes part with a zero.",
            needs=("the norm", "scaled down"),
        ),
        Criterion(
            "one number", 1, "One all-reduce of one float32 number is enough, however many shards there are."
        ),
    ),
    hints=(
        "What can be added up over ranks, so that the norm comes out of the sum?",
        "Which ranks have to call the all-reduce? All of them, also one that has nothing to give.",
    ),
)
def clip_grad_norm(answer: Answer, rng: Rng) -> Findings:
    """Norms above the bound and below, in two precisions, on one rank and more, some without gradients."""
    large = [Clipped.draw(rng, 3, factor=0.3), Clipped.draw(rng, 1, factor=0.5)]
    large.append(Clipped.in_bfloat16())
    large.append(Clipped.draw(rng, 2, factor=0.6, scale=1e-6, dtypes=(torch.bfloat16, torch.float32)))
    small = [Clipped.draw(rng, 2, factor=1.5)]
    small.append(replace(Clipped.draw(rng, 2, factor=1.0, scale=0.0), max_norm=0.0))
    unknown = Clipped.draw(rng, 2, factor=0.5).with_number(math.nan)
    bare = Clipped.draw(rng, 4, factor=0.4, bare=True)
    runs = [(each, each.launch(answer)) for each in large]
    left = [(each, each.launch(answer)) for each in small]
    yield "the norm", compare.first_failure(each.norms(run) for each, run in [*runs, *left])
    overflown = Clipped.draw(rng, 2, factor=0.5).with_number(math.inf)
    scaled = [*(each.clipped(run) for each, run in runs), overflown.nothing_left(overflown.launch(answer))]
    yield "scaled down", compare.first_failure(scaled)
    of_unknown = unknown.launch(answer)
    yield (
        "left alone",
        compare.first_failure([*(each.clipped(run) for each, run in left), unknown.untouched(of_unknown)]),
    )
    of_bare = bare.launch(answer)
    yield "ranks without gradients", compare.first_failure((bare.norms(of_bare), bare.clipped(of_bare)))
    yield (
        "one number",
        compare.first_failure(
            communication.payload_of(run, "all_reduce", 4) for _, run in [*runs, *left, (bare, of_bare)]
        ),
    )


@dataclass(frozen=True, slots=True)
class Clipped:
    """Shards of each rank, their gradients, and a bound."""

    weights: list[list[Tensor]]
    gradients: list[list[Tensor | None]]
    max_norm: float

    @classmethod
    def draw(
        cls,
        rng: Rng,
        ranks: int,
        factor: float,
        scale: float = 30.0,
        dtypes: Sequence[torch.dtype] = (torch.float32,),
        bare: bool = False,
    ) -> "Clipped":
        """factor: the bound, of the norm. dtypes: of a rank's shards in turn. bare: three ranks have no
        gradient, each in another way.
        """
        fewest = len(dtypes)
        lengths = [[rng.integer(1, 9) for _ in range(rng.integer(fewest, 3))] for _ in range(ranks)]
        if bare:
            lengths[0], lengths[2] = [], [0]
        shapes = [
            [(1, length) if place == 0 else (length,) for place, length in enumerate(own)] for own in lengths
        ]
        precisions = cycle(dtypes)
        weights = [[rng.normal(*shape, dtype=next(precisions)) for shape in own] for own in shapes]
        # Each rank's are of another size, so that a mean over ranks is not the sum.
        gradients: list[list[Tensor | None]] = [
            [(scale * (rank + 1) * rng.normal(*each.shape)).to(each.dtype) for each in own]
            for rank, own in enumerate(weights)
        ]
        if bare:
            gradients[1] = [None] * len(lengths[1])
        drawn = cls(weights, gradients, 1.0)
        return cls(weights, gradients, factor * (drawn.norm or 1.0))

    @classmethod
    def in_bfloat16(cls) -> "Clipped":
        """Two ranks with 300 equal numbers each, whose squares lie between two that bfloat16 has."""
        gradients: list[list[Tensor | None]] = [
            [torch.full((300,), rank * 1.0625, dtype=torch.bfloat16)] for rank in (1, 2)
        ]
        drawn = cls([[torch.ones(300, dtype=torch.bfloat16)] for _ in gradients], gradients, 1.0)
        return replace(drawn, max_norm=0.7 * drawn.norm)

    def with_number(self, number: float) -> "Clipped":
        """The last rank's first gradient has this number, NaN or infinite, in it."""
        *others, (first, *rest) = self.gradients
        assert first is not None
        return replace(self, gradients=[*others, [first.index_fill(-1, torch.tensor([0]), number), *rest]])

    @property
    def norm(self) -> float:
        given = [each for own in self.gradients for each in own if each is not None]
        return math.sqrt(sum(each.double().square().sum().item() for each in given))

    def launch(self, answer: Answer) -> Observed[NormReply]:
        given = per_rank(self.weights), per_rank(self.gradients), self.max_norm
        return answer.launch(drivers.clipped, *given, ranks=len(self.weights))

    def norms(self, run: Observed[NormReply]) -> Finding:
        """Passes if every rank has returned the norm of all."""
        expected = [torch.tensor(self.norm, dtype=torch.float32)] * len(self.weights)
        seen = [reply.norm for reply in run.results]
        return compare.close_on_all_ranks(seen, expected, "the norm", rtol=1e-4)

    def untouched(self, run: Observed[NormReply]) -> Finding:
        """Passes if every rank's norm is NaN, which is not above the bound, and gradients are as given."""
        for rank, reply in enumerate(run.results):
            given = compare.side_by_side(reply.gradients, self.gradients[rank])
            if not all(compare.same(*map(_bits, pair)) for pair in given):
                return Finding(False, f"A norm of NaN has changed gradients on rank {rank}; expected none.")
            if not (isinstance(reply.norm, Tensor) and reply.norm.isnan().all()):
                said = f"Where a gradient is NaN the norm on rank {rank} is {compare.shown(reply.norm)}"
                return Finding(False, f"{said}; expected NaN.")
        return Finding(True, "A norm of NaN changes nothing.")

    def nothing_left(self, run: Observed[NormReply]) -> Finding:
        """Passes if every rank's norm is infinite, and gradients are 0 times what they were."""
        for rank, reply in enumerate(run.results):
            if not (isinstance(reply.norm, Tensor) and reply.norm.isposinf().all()):
                said = f"Where a gradient is infinite the norm on rank {rank} is {compare.shown(reply.norm)}"
                return Finding(False, f"{said}; expected infinity.")
            for seen, given in compare.side_by_side(reply.gradients, self.gradients[rank]):
                if (
                    given is None
                    or seen is None
                    or not torch.equal(seen.nan_to_num(1), (0 * given).nan_to_num(1))
                ):
                    said = f"rank {rank}: an infinite norm leaves the gradient {compare.shown(seen)}"
                    return Finding(False, f"{said}; expected 0 times what it was, {compare.shown(given)}.")
        return Finding(True, "An infinite norm leaves 0 times the gradients.")

    def clipped(self, run: Observed[NormReply]) -> Finding:
        """Passes if all gradients are what they should be, and the weights as they were."""
        scale = min(1.0, self.max_norm / self.norm) if self.norm else 1.0
        for rank, reply in enumerate(run.results):
            where = f"on rank {rank} of {len(self.weights)}, norm {self.norm:.6g}, bound {self.max_norm:.6g}"
            for seen, given in compare.side_by_side(reply.gradients, self.gradients[rank]):
                if given is None:
                    found = compare.equal(seen, None, f"a gradient that was None {where}")
                else:
                    rtol = 0.0 if scale == 1 else 1e-4 if given.dtype == torch.float32 else 1e-2
                    expected = (scale * given.float()).to(given.dtype)
                    found = compare.close(seen, expected, f"a gradient {where}", rtol, atol=0)
                if not found.passed:
                    return found
            if not reply.in_place:
                return Finding(False, f"{where}: .grad is another tensor; expected the same one, multiplied.")
            for weight, (left, _) in zip(
                self.weights[rank], compare.side_by_side(reply.weights, self.weights[rank]), strict=True
            ):
                if not compare.same(left, weight):
                    return Finding(False, f"{where}: the shards themselves have changed.")
        scaled = "as they were" if scale == 1 else f"{scale:.4g} times what they were"
        return Finding(True, f"All gradients are {scaled}.")


def _bits(gradient: Tensor | None) -> Tensor | None:
    """A gradient's bytes, in which a NaN equals itself."""
    return None if gradient is None else gradient.contiguous().view(torch.uint8)
