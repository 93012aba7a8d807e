"""Unit 04, the fusion buffer."""

import math

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_04.drivers import buffers as drivers
from graders.units.unit_04.replies import FusedReply


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "end to end", 1, "One dimension, the dtype of the tensors, and every number once, in order."
        ),
        Criterion(
            "any layout",
            1,
            "What lies in memory column by column is still to be read row by row, as flatten() does.",
        ),
        Criterion(
            "memory of its own",
            1,
            "Autograd is not to know of the buffer, and what is written into it is not to change a "
            "gradient: not with a single tensor either.",
        ),
    ),
    hints=("Does flatten() copy a tensor that is contiguous already?",),
)
def fuse(answer: Answer, rng: Rng) -> Findings:
    """Tensors of drawn shapes, dtypes and layouts."""
    cases = [
        [rng.normal(*shape, dtype=dtype) for shape in _shapes(rng)]
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    ]
    # Odd numbers above 2**53, which no floating-point number holds.
    cases.append([2 * rng.integers(2**54, 2**55, *shape) + 1 for shape in _shapes(rng)])
    seen = [answer.call(drivers.fused, case, "contiguous", False) for case in cases]
    yield (
        "end to end",
        compare.first_failure(
            compare.close(reply.result, _flat(case), "the buffer", 0, 0)
            for reply, case in zip(seen, cases, strict=True)
        ),
    )
    square = [rng.normal(3, 4, dtype=torch.float64), rng.normal(2, 3, 4, dtype=torch.float64)]
    turned = [answer.call(drivers.fused, square, layout, False) for layout in ("transposed", "strided")]
    yield (
        "any layout",
        compare.first_failure(
            compare.close(reply.result, _flat(square), f"the buffer of {layout} tensors", 0, 0)
            for reply, layout in zip(turned, ("transposed", "strided"), strict=True)
        ),
    )
    alone = [answer.call(drivers.fused, [tensor], "contiguous", True) for tensor in (cases[0][0], square[0])]
    own = [*seen, *turned, *alone]
    yield "memory of its own", compare.first_failure(map(_own_memory, own))


def _own_memory(reply: FusedReply) -> Finding:
    if reply.history:
        return Finding(False, "The buffer requires a gradient; expected a tensor without history.")
    if not reply.kept:
        return Finding(False, "What was written into the buffer changed a tensor that was given.")
    if not reply.same:
        return Finding(
            False, "A tensor that was given has another requires_grad, shape or place in memory now."
        )
    if not reply.contiguous:
        return Finding(False, "The numbers of the buffer do not lie one behind the other; expected so.")
    return Finding(True, "The buffer has memory of its own, and no history.")


@exercise(
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "the tensors", 2, "Each takes as many numbers as its shape has, from where the last one ended."
        ),
        Criterion(
            "no copies", 1, "view() shares memory with what it is a view of; clone() and cat() do not."
        ),
        Criterion(
            "what does not fit",
            1,
            "Too few numbers, or too many: compare before you cut, and raise ValueError.",
        ),
    ),
    hints=("How many numbers has a tensor of shape (), and how many one of shape (3, 0)?",),
)
def unfuse(answer: Answer, rng: Rng) -> Findings:
    """Buffers of drawn shapes, in full, too short and too long."""
    shapes = [_shapes(rng), [[rng.integer(2, 9)]], [[0], [2, 0]]]
    dtypes = (torch.float32, torch.bfloat16, torch.float32)
    flats = [
        rng.normal(sum(map(math.prod, each)), dtype=dtype) for each, dtype in zip(shapes, dtypes, strict=True)
    ]
    seen = [answer.call(drivers.unfused, *case) for case in zip(flats, shapes, strict=True)]
    expected = [_parts(*case) for case in zip(flats, shapes, strict=True)]
    yield (
        "the tensors",
        compare.first_failure(
            _same_parts(reply.result, parts) for reply, parts in zip(seen, expected, strict=True)
        ),
    )
    written = [flat + 1 for flat in flats]
    yield (
        "no copies",
        compare.first_failure(
            (
                compare.close(reply.flat, flat, "the buffer, after 1 was added to every tensor,")
                for reply, flat in zip(seen, written, strict=True)
            ),
            "What is written into the tensors is written into the buffer.",
        ),
    )
    odd = [flats[0][:-1], rng.normal(len(flats[0]) + 1), rng.normal(2 * len(flats[0]))]
    refused = [answer.call(drivers.unfuse_raises, flat, shapes[0]) for flat in odd]
    refused.append(answer.call(drivers.unfuse_raises, rng.normal(2), []))
    yield (
        "what does not fit",
        compare.first_failure(
            Finding(
                raised == "ValueError",
                f"With {compare.counted(len(flat), 'number')} for shapes of {wanted} it raised "
                f"{raised or 'nothing'}; expected ValueError.",
            )
            for raised, flat, wanted in zip(
                refused, [*odd, torch.empty(2)], [len(flats[0])] * 3 + [0], strict=True
            )
        ),
    )


def _shapes(rng: Rng) -> list[list[int]]:
    """Of different dimensions; one has a single number and no dimension, one no number."""
    a, b, c = (rng.integer(2, 5) for _ in range(3))
    return [[a, b], [], [c], [0, a], [b, 2, c]]


def _flat(tensors: list[Tensor]) -> Tensor:
    """All numbers, [n]."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _parts(flat: Tensor, shapes: list[list[int]]) -> list[Tensor]:
    """What lies end to end in flat [n]."""
    cut = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(cut, shapes, strict=True)]


def _same_parts(seen: object, expected: list[Tensor]) -> Finding:
    """Passes if a list of these tensors, of the shapes given, came back."""
    if type(seen) is not list or len(seen) != len(expected):
        return Finding(False, f"unfuse returned {compare.shown(seen)}; expected {len(expected)} tensors.")
    return compare.first_failure(
        compare.close(got, wanted, f"tensor {number}", 0, 0)
        for number, (got, wanted) in enumerate(zip(seen, expected, strict=True))
    )
