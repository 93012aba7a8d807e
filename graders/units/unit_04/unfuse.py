"""The grader of `unfuse`."""

import math

import torch
from torch import Tensor

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.unit_04.cases import ODD_SHAPES, Shapes
from graders.units.unit_04.drivers import buffers as drivers


def buffer_and_shapes(rng: Rng, case: Shapes) -> Arguments:
    """A buffer that holds just as many numbers as these shapes."""
    return [case.drawn(rng, sum(map(math.prod, case.shapes))), [[*shape] for shape in case.shapes]]


def refused(answer: Answer, rng: Rng) -> Finding:
    """Passes if buffers that are too short, or too long, raise ValueError."""
    shapes = [[2, 3], [], [4]]
    counts = (10, 12, 22)
    raised = answer.call(drivers.unfuse_raises, [[rng.normal(count), shapes] for count in counts])
    return compare.first_failure(
        Finding(got is True, f"{count} numbers for the shapes {shapes}; expected ValueError.")
        for got, count in compare.side_by_side(raised, counts)
    )


@of_function(
    base=Shapes(),
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "the tensors",
            2,
            "Each takes as many numbers as its shape has, from where the last one ended.",
            vary=vary(shapes=(((7,),), ODD_SHAPES, ((0,), (2, 0))), dtype=(torch.bfloat16,)),
        ),
        Criterion(
            "no copies",
            1,
            "view() shares memory with what it is a view of; clone() and cat() do not.",
            how=kept,
        ),
        Criterion(
            "what does not fit",
            1,
            "Too few numbers, or too many: compare before you cut, and raise ValueError. "
            "(_unflatten_dense_tensors does not see that there are too many.)",
            ask=refused,
        ),
    ),
    hints=("How many numbers has a tensor of shape (), and how many one of shape (3, 0)?",),
    arguments=buffer_and_shapes,
    tolerance=0.0,
    driver=drivers.unfused,
    written=lambda given: "flat, shapes",
)
def unfuse(case: Shapes, given: Arguments) -> Expected:
    """What lies end to end in the buffer, which has it in common with the tensors."""
    flat: Tensor = given[0]
    cut = torch.split(flat, [math.prod(shape) for shape in case.shapes])
    parts = [part.reshape(shape) for part, shape in zip(cut, case.shapes, strict=True)]
    return Expected(parts, {"flat, when 1 has been added to every tensor": flat + 1}, returned=None)
