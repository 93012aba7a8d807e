"""The grader of `fuse`."""

from dataclasses import dataclass

import torch

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.ranks.features import LAYOUTS
from graders.units.unit_04.cases import ODD_SHAPES, Shapes
from graders.units.unit_04.drivers import buffers as drivers


@dataclass(frozen=True, slots=True)
class Gradients(Shapes):
    """trained: whether autograd follows what is done with them."""

    layout: str = feature("contiguous", LAYOUTS.__getitem__)
    trained: bool = feature(False, lambda trained: "requires_grad" * trained)


def tensors(rng: Rng, case: Gradients) -> Arguments:
    """Tensors of these shapes, and whether they are trained."""
    return [[case.drawn(rng, *shape) for shape in case.shapes], case.trained]


@of_function(
    base=Gradients(),
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "end to end",
            2,
            "One dimension, the dtype of the tensors, and every number once, in order.",
            vary=vary(shapes=(((4,),), ODD_SHAPES), dtype=(torch.float64, torch.bfloat16)),
        ),
        Criterion(
            "any layout",
            1,
            "What lies in memory column by column is still to be read row by row, as flatten() does. "
            "(parameters_to_vector calls view, which cannot; gradients may lie like that.)",
            vary=vary(layout=("strided",)) + both(layout="transposed", shapes=((3, 4), (2, 3))),
        ),
        Criterion(
            "memory of its own",
            1,
            "Autograd is not to know of the buffer, and what is written into it is not to change a "
            "gradient: not with a single tensor either. (_flatten_dense_tensors returns a view of one tensor "
            "alone.)",
            vary=vary(trained=(True,)),
            how=kept,
        ),
    ),
    hints=("Does flatten() copy a tensor that is contiguous already?",),
    arguments=tensors,
    tolerance=0.0,
    driver=drivers.fused,
    written=lambda given: "tensors",
)
def fuse(case: Gradients, given: Arguments) -> Expected:
    """All numbers, in the order in which each tensor is read."""
    flat = torch.cat([tensor.reshape(-1) for tensor in given[0]])
    left = {
        "each tensor, when 1 has been added to the buffer": given[0],
        "requires_grad of the buffer": False,
    }
    return Expected(flat, left, returned=None)
