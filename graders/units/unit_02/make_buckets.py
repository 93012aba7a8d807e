"""The grader of `make_buckets`."""

from dataclasses import dataclass

import torch

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_02.cases import filled
from graders.units.unit_02.drivers import replicas

SHAPES = ((6, 5), (6,), (9, 6), (9,), (7, 9), (7,), (4, 7), (4,))
"""Of the weights and biases of four layers: 120, 24, 216, 36, 252, 28, 112 and 16 bytes in float32."""
LAST_LAYER = 128
"""Bytes of its weight and its bias."""


@dataclass(frozen=True, slots=True)
class Cut:
    """limit: bucket_bytes. double: numbers of layers in float64. frozen: numbers of parameters."""

    limit: int = feature(10**6, "at most {} bytes in a bucket")
    double: tuple[int, ...] = feature((), lambda double: f"layers {[*double]} in float64" if double else "")
    frozen: tuple[int, ...] = feature(
        (), lambda frozen: f"the parameters {[*frozen]} frozen" if frozen else ""
    )

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Of each parameter."""
        layers = (number // 2 for number in range(len(SHAPES)))
        return [torch.float64 if layer in self.double else torch.float32 for layer in layers]


def model_to_cut(rng: Rng, case: Cut) -> Arguments:
    """The model's values, which do not matter; which parameters are frozen; and the bound."""
    values = [torch.zeros(shape, dtype=dtype) for shape, dtype in zip(SHAPES, case.dtypes, strict=True)]
    return [values, [*case.frozen], case.limit]


@of_function(
    base=Cut(),
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "in the order of backward",
            1,
            "Backward begins at the last layer. So the last parameters are in the first bucket, and within a "
            "bucket the order is reversed too.",
        ),
        Criterion(
            "cut at bucket_bytes",
            1,
            "Close a bucket before the parameter that would take it above bucket_bytes, and not before one "
            "that fills it to the byte, nor one that is empty. p.nbytes counts bytes, p.numel() numbers. "
            "(DDP's own, _compute_bucket_assignment_by_size, closes a bucket only when it is full, so "
            "buckets are larger than was asked for.)",
            vary=vary(limit=(300, LAST_LAYER, LAST_LAYER - 1, 1)) + both(limit=400, double=(1, 2)),
        ),
        Criterion(
            "each trainable parameter once",
            1,
            "model.parameters() yields a parameter that has several names once. Leave out those whose "
            "requires_grad is False.",
            vary=vary(frozen=((4, 5), tuple(range(len(SHAPES))))),
        ),
    ),
    hints=(
        "Which parameter's gradient does backward complete first? reversed() takes a list.",
        "When does a parameter open a new bucket? If there is none yet, or if there is no room in the last.",
    ),
    arguments=model_to_cut,
    driver=replicas.cut,
    written=lambda given: f"model, {given[-1]}",
)
def make_buckets(case: Cut, given: Arguments) -> Expected:
    """The numbers of the parameters in each bucket."""
    values, frozen, limit = given
    trained = [(n, value.nbytes) for n, value in enumerate(values) if n not in frozen]
    return Expected(filled(trained[::-1], limit), {}, returned=None)
