"""The driver of answers that ranks call: it hands them their arguments, and tells what became of these."""

from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import ON_META, Called

LAYOUTS = ("contiguous", "strided", "transposed", "meta")
"""As torch makes a tensor; every second element of a wider one; a matrix that stands column by column; on the
device meta, without numbers, where a matrix stands column by column.
"""

UNTOUCHED = -7
"""What stands between the elements of a strided tensor, and must stand there afterwards."""


def calls(
    answer: AnswerFunction,
    cases: list[list[PlainData]],
    options: list[dict[str, PlainData]],
    layouts: list[str],
    members: list[list[int] | None],
    meet: list[bool],
) -> list[Called]:
    """Call the answer once for each call that this rank takes part in, one after the other.

    cases: the positional arguments of each of this rank's calls. options, layouts, members: of all calls, the
    keyword arguments, one of LAYOUTS for all tensors given, and the global ranks of the group that calls;
    None: the default group, and no `group` argument. meet: before which calls all ranks wait for one another.
    """
    groups: dict[tuple[int, ...], Any] = {}
    for each in members:
        if each is not None and tuple(each) not in groups:
            groups[tuple(each)] = dist.new_group(each)
    mine = iter(cases)
    returned: list[Any] = []
    told: list[Called] = []
    for layout, named, each, together in zip(layouts, options, members, meet, strict=True):
        if together:
            dist.barrier()
        if each is None:
            told.append(call_once(answer, next(mine), named, layout, returned))
        elif dist.get_rank() in each:
            told.append(
                call_once(answer, next(mine), {**named, "group": groups[tuple(each)]}, layout, returned)
            )
    return told


def call_once(
    answer: AnswerFunction,
    arguments: list[PlainData],
    options: dict[str, Any],
    layout: str,
    earlier: list[Any],
) -> Called:
    """One call, and what it left behind. earlier: results of other calls, to which its own is added."""
    grounds: list[Tensor] = []
    given = [laid_out(argument, layout, grounds) for argument in arguments]
    lists = [(argument, list(argument)) for argument in given if isinstance(argument, list)]
    tensors = [each for each in chain(given, *(items for _, items in lists)) if isinstance(each, Tensor)]
    places = list(map(place_of, tensors))
    result = waited_for(answer(*given, **options))
    items = all(list(map(id, now)) == list(map(id, before)) for now, before in lists)
    stayed = list(map(place_of, tensors)) == places
    same = [position for position, argument in enumerate(given) if argument is result]
    kept = all(bool((ground[..., 1::2] == UNTOUCHED).all()) for ground in grounds)
    left = [copied(argument) for argument in given]
    if same and result is not None:
        return Called(None, same[0], left, items_kept=items, memory_kept=stayed, gaps_kept=kept)
    shared = shares(result, [*tensors, *earlier])
    earlier.append(result)
    return Called(
        copied(result), None, left, items_kept=items, memory_kept=stayed, gaps_kept=kept, shares=shared
    )


def place_of(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's memory is, and where in it the tensor begins."""
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())


def shares(result: Any, given: list[Any]) -> bool:
    """Whether a tensor lies in the memory of one of those given."""
    if type(result) is not Tensor or result.layout is not torch.strided or not result.numel():
        return False
    if result.is_meta:
        return False
    where = result.untyped_storage().data_ptr()
    return any(isinstance(each, Tensor) and each.untyped_storage().data_ptr() == where for each in given)


def laid_out(value: PlainData, layout: str, grounds: list[Tensor]) -> PlainData:
    """Every tensor of `value` in that layout; the wider ones of strided tensors are added to `grounds`."""
    if isinstance(value, list):
        return [laid_out(item, layout, grounds) for item in value]
    if not isinstance(value, Tensor) or (value.dim() == 0 and layout != "meta"):
        return value
    match layout:
        case "strided":
            return _every_second(value, grounds)
        case "transposed":
            return value.mT.contiguous().mT
        case "meta":
            return (value.mT.contiguous().mT if value.dim() > 1 else value).to("meta")
        case _:
            return value


def _every_second(value: Tensor, grounds: list[Tensor]) -> Tensor:
    """The tensor as every second element of a wider one, which is added to `grounds`."""
    ground = torch.full((*value.shape[:-1], 2 * value.shape[-1]), UNTOUCHED, dtype=value.dtype)
    grounds.append(ground)
    return ground[..., ::2].copy_(value)


def waited_for(value: Any) -> Any:
    """What a functional collective returned is waited for when it is first used, and has no memory before."""
    return value.trigger_wait() if isinstance(value, AsyncCollectiveTensor) else value  # type: ignore[no-untyped-call]


def copied(value: Any) -> Any:
    """The tensors as they are now: the next call may reuse them. A name for one without numbers."""
    value = waited_for(value)
    if type(value) is Tensor:
        return ON_META if value.is_meta else value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(copied(item) for item in value)
    return value
