"""Tensors laid flat in a buffer, and cut out of it again."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of
from graders.units.ranks.drivers import copied, laid_out, place_of
from graders.units.unit_04.optimizers import raised_by


def fused(answer: AnswerFunction, calls: list[list[Any]], layouts: list[str]) -> list[Called]:
    """The buffer of each call; then, as arguments, the tensors when 1 has been added to the buffer, whether
    each requires a gradient, whether the buffer does, and whether its numbers lie one behind the other.

    calls: tensors, and whether they are trained. layouts: of these.
    """
    told = []
    for (tensors, trained), layout in zip(calls, layouts, strict=True):
        grounds: list[Tensor] = []
        given = [laid_out(tensor, layout, grounds).requires_grad_(trained) for tensor in tensors]
        places = [(*place_of(tensor), tensor.stride()) for tensor in given]
        flat = answer(given)
        result, history, contiguous = copied(flat), False, True
        if isinstance(flat, Tensor):
            history, contiguous = flat.requires_grad, flat.is_contiguous()
            flat.detach().add_(1)
        same = places == [(*place_of(tensor), tensor.stride()) for tensor in given]
        left = [copies_of(given), [tensor.requires_grad for tensor in given], history, contiguous]
        told.append(Called(result, None, left, memory_kept=same))
    return told


def unfused(answer: AnswerFunction, calls: list[list[Any]], layouts: list[str]) -> list[Called]:
    """The tensors that are cut out of each buffer, which begins within a larger one; then, as argument, the
    buffer when 1 has been added to each of them.
    """
    told = []
    for values, shapes in calls:
        flat = torch.cat([values[:0].new_ones(3), values, values[:0].new_ones(2)])[3:-2]
        parts = answer(flat, list(map(torch.Size, shapes)))
        copies = [copied(part) for part in parts] if type(parts) is list else parts
        for part in parts:
            part += 1
        told.append(Called(copies, None, [flat.clone()]))
    return told


def unfuse_raises(answer: AnswerFunction, calls: list[list[Any]]) -> list[PlainData]:
    """The class of what the answer raises in each call, by name; empty if nothing."""
    return [
        raised_by(partial(answer, flat, list(map(torch.Size, shapes))), ValueError) for flat, shapes in calls
    ]
