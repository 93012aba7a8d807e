"""Unit 06, sequence parallelism: a layer whose norm sees some of the tokens and whose matrices see all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

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
from graders.units.models import sent
from graders.units.passes import calls_by_pass
from graders.units.unit_06 import drivers
from graders.units.unit_06.passes import PAIRS, at_places
from graders.units.unit_06.replies import SequenceReply
from graders.units.unit_06.sequences import GATHER, GROUP, SCATTER

PASSES = ("first forward", "first backward", "forward", "backward")

NAMES = ("x_BTD", "norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "bias")
"""What has a gradient, in the order of the driver's reply."""
CUT, ON_ALL = "gradients of what is cut", "gradients of what all have"


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "its tokens",
            4,
            "Norm this rank's tokens, bring all together, apply the rank's parts, deal out the sum; "
            "then add what is added once.",
        ),
        Criterion(
            CUT,
            3,
            "x, up and down: each collective's backward has to be its mirror image.",
        ),
        Criterion(
            ON_ALL,
            4,
            "Each rank has used norm and bias for its own tokens only; all ranks' gradients add up. What "
            "else they are used for is not this function's: leave no hook at them.",
            needs=(CUT,),
        ),
        Criterion(
            "collectives",
            2,
            "One all-gather and one reduce-scatter in each pass, and all-reduces of 3 D numbers in backward.",
            needs=(CUT, ON_ALL),
        ),
        Criterion("group", 1, GROUP.hint, needs=(CUT, ON_ALL)),
    ),
    hints=(
        "Between which two places are all tokens on every rank? Write down the shapes, [B, T / p, D] first.",
        "functional.layer_norm takes weight and bias as arguments: pass what you have made of them.",
        "f does nothing in forward, and adds up all ranks' gradients in backward. What if x is a parameter?",
    ),
)
def sequence_parallel_mlp(answer: Answer, rng: Rng) -> Findings:
    """Drawn layers, in float64; what comes out of the whole layer is computed by autograd."""
    case = Layer.drawn(rng, rng.integer(2, 3))
    run = case.launch(answer)
    results, gradients = case.expected()
    seen = [reply.result for reply in run.results]
    kept = [compare.equal(r.x, x, "x_BTD afterwards") for r, x in zip(run.results, case.tokens, strict=True)]
    right = compare.close_on_all_ranks(seen, results, "the result")
    yield "its tokens", compare.first_failure((right, *kept))
    yield (
        CUT,
        _gradients(run, gradients, ("x_BTD", "up.weight", "up.bias", "down.weight")),
    )
    yield ON_ALL, _gradients(run, gradients, ("norm.weight", "norm.bias", "bias"))
    yield "collectives", _few_collectives(run, 3 * case.x.shape[2] * case.x.element_size())
    pairs = Layer.drawn(rng, 2)
    paired, (results, gradients) = pairs.launch(answer, PAIRS), pairs.expected()
    by_name = {name: at_places([each[name] for each in gradients], PAIRS) for name in NAMES}
    repeated = [dict(zip(by_name, own, strict=True)) for own in zip(*by_name.values(), strict=True)]
    seen = [reply.result for reply in paired.results]
    right = compare.close_on_all_ranks(seen, at_places(results, PAIRS), "the result")
    yield "group", compare.first_failure((right, _gradients(paired, repeated, NAMES)))


@dataclass(frozen=True, slots=True)
class Layer:
    """The whole layer: x and arriving [B, T, D]; its values: norm's weight and bias [D], up [F, D] and [F],
    down [D, F], bias [D]. size: p.
    """

    x: Tensor
    arriving: Tensor
    values: list[Tensor]
    size: int
    epsilon: float

    @classmethod
    def drawn(cls, rng: Rng, size: int) -> "Layer":
        samples, tokens, width = rng.integer(2, 3), size * rng.integer(1, 3), rng.integer(3, 4)
        inner = size * rng.integer(2, 3)
        shapes = [(width,), (width,), (inner, width), (inner,), (width, inner), (width,)]
        x, arriving = (rng.normal(samples, tokens, width, dtype=torch.float64) for _ in range(2))
        return cls(x, arriving, [rng.normal(*shape, dtype=torch.float64) for shape in shapes], size, 0.25)

    def launch(self, answer: Answer, groups: Sequence[list[int]] = ()) -> Observed[SequenceReply]:
        dimensions = [1, None, None, 0, 0, 1, None, 1]
        cut = [
            at_places(_parts(each, dim, self.size), groups)
            for each, dim in zip([self.x, *self.values, self.arriving], dimensions, strict=False)
        ]
        x, *values, arriving = cut
        return answer.launch(
            drivers.sequence_mlp,
            per_rank(x),
            per_rank([list(each) for each in zip(*values, strict=True)]),
            per_rank(arriving),
            self.epsilon,
            list(groups),
            ranks=len(x),
        )

    @property
    def tokens(self) -> list[Tensor]:
        """Each rank's x."""
        return _parts(self.x, 1, self.size)

    def expected(self) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        """Of each rank the result, and by name the gradients, with those from beside it: see the driver."""
        leaves = [each.clone().requires_grad_() for each in (self.x, *self.values)]
        x, weight, shift, up, up_bias, down, bias = leaves
        h = functional.layer_norm(x, weight.shape, weight, shift, self.epsilon)
        y = x + functional.gelu(h @ up.T + up_bias) @ down.T + bias
        torch.autograd.backward([sent(y, self.arriving), weight.sum(), shift.sum(), bias.sum()])
        grads = [leaf.grad for leaf in leaves]
        dimensions = [1, None, None, 0, 0, 1, None]
        cut = [
            _parts(grad, dim, self.size)
            for grad, dim in zip(grads, dimensions, strict=False)
            if grad is not None
        ]
        return _parts(y.detach(), 1, self.size), [
            dict(zip(NAMES, own, strict=False)) for own in zip(*cut, strict=True)
        ]


def _parts(whole: Tensor, dimension: int | None, size: int) -> list[Tensor]:
    """What each of `size` ranks has of it; None: all of it."""
    parts = [whole] * size if dimension is None else whole.tensor_split(size, dimension)
    return [part.clone() for part in parts]


def _gradients(
    run: Observed[SequenceReply], expected: Sequence[dict[str, Tensor]], names: Sequence[str]
) -> Finding:
    return compare.first_failure(
        compare.close(
            dict(compare.side_by_side(NAMES, reply.gradients))[name],
            wanted[name],
            f"rank {rank}'s {name}.grad",
        )
        for name in names
        for rank, (reply, wanted) in enumerate(zip(run.results, expected, strict=True))
    )


def _few_collectives(run: Observed[SequenceReply], nbytes: int) -> Finding:
    """Passes if each pass has one all-gather and one reduce-scatter, and backward all-reduces of at most
    `nbytes` besides.
    """
    for rank in range(len(run.results)):
        for label, calls in zip(PASSES, calls_by_pass(run, rank, PASSES), strict=True):
            sums = [call for call in calls if call.op == "all_reduce"] if label.endswith("backward") else []
            others = sorted(call.op for call in calls if call not in sums)
            kinds = [op.startswith(kind) for op, kind in zip(others, (GATHER, SCATTER), strict=False)]
            given = sum(call.nbytes for call in sums)
            if kinds != [True, True] or len(others) != 2 or given > nbytes:
                said = f"In {label} rank {rank} calls {', '.join(others) or 'nothing'}"
                return Finding(
                    False, f"{said}, and gives {given:,} bytes to all-reduces; {nbytes:,} are allowed."
                )
    return Finding(True, "Each pass has one all-gather and one reduce-scatter.")
