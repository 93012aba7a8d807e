"""Drivers of unit 07: each gives the answer its tensors, laid out as asked, and tells what became of them."""

from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.launch.failures import RankFailed
from course_lib.launch.mpi import mpirun
from graders.grading.answer import PlainData
from graders.units.unit_07 import mpi_calls

Answer = Callable[..., Any]

MPI_SECONDS = 15.0
"""What an MPI program may take: a deadlock ends then."""

LAYOUTS = ("contiguous", "strided", "transposed")
"""As torch makes a tensor; every second element of a wider one; a matrix that stands column by column."""

UNTOUCHED = -7
"""What stands between the elements of a strided tensor, and must stand there afterwards."""


def collective(
    answer: Answer,
    cases: list[list[PlainData]],
    options: dict[str, PlainData],
    layout: str,
    members: list[int] | None,
) -> PlainData:
    """Call the answer once a case, one after the other; what each call returned and left behind.

    cases: the positional arguments of each call on this rank. layout: one of LAYOUTS, for all tensors given.
    members: global ranks of the group that calls; None: the default group, and no `group` argument.
    """
    if members is not None:
        group = dist.new_group(members)
        if dist.get_rank() not in members:
            return []
        options = {**options, "group": group}
    return [_call_once(answer, arguments, options, layout) for arguments in cases]


def _call_once(
    answer: Answer, arguments: list[PlainData], options: dict[str, PlainData], layout: str
) -> PlainData:
    """The result, or which argument it is; the arguments afterwards; whether the gaps kept what they held."""
    grounds: list[Tensor] = []
    given = [_laid_out(argument, layout, grounds) for argument in arguments]
    result = answer(*given, **options)
    same = [position for position, argument in enumerate(given) if argument is result]
    return {
        "result": None if same or result is None else _copied(result),
        "returned": same[0] if same and result is not None else None,
        "arguments": [_copied(argument) for argument in given],
        "gaps_kept": all(bool((ground[..., 1::2] == UNTOUCHED).all()) for ground in grounds),
    }


def _laid_out(value: PlainData, layout: str, grounds: list[Tensor]) -> PlainData:
    """Every tensor of `value` in that layout; the wider ones of strided tensors are added to `grounds`."""
    if isinstance(value, list):
        return [_laid_out(item, layout, grounds) for item in value]
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    match layout:
        case "strided":
            return _every_second(value, grounds)
        case "transposed":
            return value.mT.contiguous().mT
        case _:
            return value


def _every_second(value: Tensor, grounds: list[Tensor]) -> Tensor:
    """The tensor as every second element of a wider one, which is added to `grounds`."""
    ground = torch.full((*value.shape[:-1], 2 * value.shape[-1]), UNTOUCHED, dtype=value.dtype)
    grounds.append(ground)
    view = ground[..., ::2]
    view.copy_(value)
    return view


def _copied(value: Any) -> Any:
    """The tensors as they are now: the next call may reuse them."""
    if type(value) is Tensor:
        return value.detach().clone()
    if type(value) in (list, tuple):
        return [_copied(item) for item in value]
    return value


def mended(answer: Answer, argument: PlainData, *more: PlainData) -> PlainData:
    """What the answer returned, and its first argument afterwards."""
    result = answer(argument, *more)
    return {"result": _copied(result), "argument": _copied(argument)}


def mended_late(answer: Answer, argument: PlainData, late: int) -> PlainData:
    """As `mended`; on a cluster that counts computing, the rank `late` comes milliseconds late."""
    if dist.get_rank() == late:
        torch.zeros(2**20)
    return mended(answer, argument)


def fit(answer: Answer, samples: list[tuple[int, float]]) -> PlainData:
    """The fit, and the samples as the answer left them."""
    result = answer(samples)
    return {"result": result, "samples": samples}


def under_mpirun(answer: Answer, cases: list[list[Tensor]], ranks: int) -> PlainData:
    """What the answer makes of each case's arrays, by rank, in one run of mpirun.

    An exception of the root cause's kind is raised where a rank raised; the stub's stays the stub's.
    """
    arrays = [[tensor.numpy() for tensor in case] for case in cases]
    cloudpickle.register_pickle_by_value(mpi_calls)
    try:
        everyone = mpirun(mpi_calls.play, answer, arrays, ranks=ranks, timeout=MPI_SECONDS)
    except RankFailed as error:
        if error.root.type == "NotImplementedError" and not error.root.message:
            raise NotImplementedError from None
        raise
    return [[_told(case) for case in rank["told"]] for rank in everyone]


def _told(case: dict[str, Any] | None) -> PlainData:
    """A case with its arrays as tensors; what is no array becomes text."""
    return case and {**case, "result": _tensor(case["result"]), "array": _tensor(case["array"])}


def _tensor(value: Any) -> PlainData:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else repr(value)[:200]
