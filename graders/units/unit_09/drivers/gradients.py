"""The driver of gradients of which each rank has a part."""

from functools import partial
from typing import Any

from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.drivers import between_marks
from graders.units.models import copies_of
from graders.units.unit_09.models import Ladder, over
from graders.units.unit_09.replies import GradientsReply


def gradient_shards(answer: AnswerFunction, cases: list[list[PlainData]]) -> list[GradientsReply]:
    """What becomes of the backward passes of each case, see `_passes`."""
    return between_marks(partial(_passes, answer), cases)


def _passes(
    answer: AnswerFunction,
    values: list[Tensor],
    shape: list[PlainData],
    passes: list[tuple[Tensor, list[int]]],
    bucket_bytes: int,
) -> GradientsReply:
    """What the answer makes of the gradients of a `Ladder` of this shape: what it takes after its values.

    passes: inputs [B, width], and the layers in the order in which this rank uses them.
    """
    model = Ladder(values, *shape)
    made = answer(model, bucket_bytes)
    shards: list[PlainData] = []
    left = []
    for number, (x, order) in enumerate(passes):
        loss = model(x, order).square().sum()
        mark("step begins")
        loss.backward()
        mark("backward ends")
        found = made.finish()
        mark("finished")
        mark(over(number))
        # Copies: the next pass may fill the same tensors again.
        shards.append(copies_of(found) if _all_tensors(found) else found)
        del found
        left.append(sum(parameter.grad is not None for parameter in model.parameters()))
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    return GradientsReply(_numbered(made.buckets, numbers), shards, left, model.there)


def _all_tensors(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(each, Tensor) for each in values)


def _numbered(buckets: Any, numbers: dict[int, int]) -> PlainData:
    """Buckets with the numbers of the parameters in place of these; what is no list of lists, as a text."""
    if not isinstance(buckets, list | tuple) or not all(isinstance(each, list | tuple) for each in buckets):
        return f"a {type(buckets).__name__}"
    return [[numbers.get(id(each), type(each).__name__) for each in bucket] for bucket in buckets]
