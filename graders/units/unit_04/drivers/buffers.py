"""Tensors laid flat in a buffer, and cut out of it again."""

from typing import Any

import torch
from torch import Tensor

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of
from graders.units.ranks.drivers import copied, laid_out


def fused(answer: AnswerFunction, calls: list[list[Any]], layouts: list[str]) -> list[Called]:
    """The buffer of each call; then, as arguments, the tensors when 1 was added to the buffer, and whether
    the buffer requires a gradient. calls: tensors, and whether they are trained. layouts: of these.
    """
    told = []
    for (tensors, trained), layout in zip(calls, layouts, strict=True):
        grounds: list[Tensor] = []
        given = [laid_out(tensor, layout, grounds).requires_grad_(trained) for tensor in tensors]
        flat = answer(given)
        result, history = copied(flat), False
        if isinstance(flat, Tensor):
            history = flat.requires_grad
            flat.detach().add_(1)
        told.append(Called(result, None, [copies_of(given), history]))
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
    """Whether the answer raises ValueError in each call."""
    found: list[PlainData] = []
    for flat, shapes in calls:
        try:
            answer(flat, list(map(torch.Size, shapes)))
        except ValueError:
            found.append(True)
        except RuntimeError:  # what torch says of it
            found.append(False)
        else:
            found.append(False)
    return found
