"""Tensors laid flat in a buffer, and cut out of it again."""

import torch
from torch import Tensor

from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import copies_of
from graders.units.unit_04.models import laid_out
from graders.units.unit_04.optimizers import raised_by
from graders.units.unit_04.replies import FusedReply, UnfusedReply


def fused(answer: AnswerFunction, tensors: list[Tensor], layout: str, trained: bool) -> FusedReply:
    """The buffer of these tensors, laid out as asked: "contiguous", "transposed" or "strided"."""
    given = [laid_out(tensor, layout).requires_grad_(trained) for tensor in tensors]
    before = _lies(given)
    flat = answer(given)
    same = before == _lies(given)
    if not isinstance(flat, Tensor):
        return FusedReply(flat, False, True, True, same)
    result, history = flat.detach().clone(), flat.requires_grad
    flat.detach().add_(1)
    kept = all(torch.equal(own, tensor) for own, tensor in zip(given, tensors, strict=True))
    return FusedReply(result, history, flat.is_contiguous(), kept, same)


def _lies(tensors: list[Tensor]) -> list[PlainData]:
    return [(each.requires_grad, each.data_ptr(), each.shape, each.stride()) for each in tensors]


def unfused(answer: AnswerFunction, flat: Tensor, shapes: list[list[int]]) -> UnfusedReply:
    """What the answer cuts out of flat [n], which begins within a larger tensor, and whether that is still
    part of it.
    """
    flat = torch.cat([flat[:0].new_ones(3), flat, flat[:0].new_ones(2)])[3:-2]
    parts = answer(flat, [torch.Size(shape) for shape in shapes])
    copies = copies_of(parts)
    for part in parts:
        part += 1
    return UnfusedReply(copies, flat.clone())


def unfuse_raises(answer: AnswerFunction, flat: Tensor, shapes: list[list[int]]) -> str:
    """The class of what the answer raises, by name; empty if nothing. flat: [n]."""
    return raised_by(lambda: answer(flat, [torch.Size(shape) for shape in shapes]), ValueError)
