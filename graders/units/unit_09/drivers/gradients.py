"""The driver of gradients of which each rank has a part."""

from functools import partial

from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.drivers import between_marks
from graders.units.models import copies_of
from graders.units.unit_09.models import Ladder, over

Cut = tuple[list[list[int]], list[PlainData], list[int]]
"""The numbers of the parameters in each bucket; what each finish() returned; and after each how many
parameters had a gradient.
"""


def gradient_shards(answer: AnswerFunction, cases: list[list[PlainData]]) -> list[Cut]:
    """What becomes of the backward passes of each case, see `_passes`."""
    return between_marks(partial(_passes, answer), cases)


def _passes(
    answer: AnswerFunction,
    values: list[Tensor],
    frozen: list[int],
    passes: list[tuple[Tensor, list[int]]],
    bucket_bytes: int,
) -> Cut:
    """What the answer makes of the gradients of a `Ladder`.

    passes: inputs [B, width], and the layers in the order in which this rank uses them.
    """
    model = Ladder(values, frozen)
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
        is_list = isinstance(found, list | tuple) and all(isinstance(each, Tensor) for each in found)
        # Copies: the next pass may fill the same tensors again.
        shards.append(copies_of(found) if is_list else found)
        del found
        left.append(sum(parameter.grad is not None for parameter in model.parameters()))
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    try:
        buckets = [[numbers[id(each)] for each in bucket] for bucket in made.buckets]
    except (TypeError, KeyError):  # They are none.
        buckets = []
    return buckets, shards, left
