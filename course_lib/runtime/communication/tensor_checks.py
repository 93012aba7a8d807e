"""What backends ask of the tensors of a collective, beyond their shape: refused where Gloo would do harm."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_AS_THEY_LIE = {"all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "scatter", "reduce_scatter"}
"""Collectives in which Gloo takes a tensor for a stretch of memory that begins where the tensor does."""


def check_strided(op: str, tensors: Iterable[Tensor]) -> None:
    """Raise ValueError for a sparse or nested tensor: it is made of several, none of which is all of it."""
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else "sparse"
            raise ValueError(
                f"{op} got a {kind} tensor ({tensor.layout}), which has no memory of its own: it is made of "
                f"several tensors. Send those, such as values() and indices() of a sparse one. (Gloo's "
                f"all_reduce would take a sparse tensor, and gather these two; NCCL would not.)"
            )


def check_dense(op: str, tensors: Iterable[Tensor]) -> None:
    """Raise ValueError for a tensor with gaps where Gloo would, without a word, send and fill the gaps."""
    if op not in _AS_THEY_LIE:
        return
    for tensor in tensors:
        if not _is_dense(tensor):
            raise ValueError(
                f"{op} needs tensors whose elements lie side by side in memory, and this one of shape "
                f"{list(tensor.shape)} has strides {list(tensor.stride())}, as after x[::2] or x[:, 0]. Gloo "
                f"would use the memory between them, NCCL refuses. Pass tensor.contiguous(), and copy the "
                f"result back."
            )


def _is_dense(tensor: Tensor) -> bool:
    if tensor.is_contiguous():
        return True
    with _disable_current_modes():
        return bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))


def common_strides(op: str, tensors: Iterable[Tensor]) -> tuple[int, ...] | None:
    """The strides on which a collective's members must agree; None if all are contiguous, or none matter.

    They matter where Gloo adds up or copies what lies at the same place in memory, whatever its index. Raises
    ValueError if the tensors of one member differ in them.
    """
    if op not in _AS_THEY_LIE or op == "all_reduce_coalesced":  # Gloo lays those end to end first.
        return None
    found = {None if tensor.is_contiguous() else _strides(tensor) for tensor in tensors}
    if len(found) > 1:
        raise ValueError(
            f"{op} got tensors that lie in memory in different ways, with the strides "
            f"{' and '.join(sorted(map(_strides_in_words, found)))}, as after .t(). Gloo would put together "
            f"what lies at the same place, and not what has the same index. Pass tensor.contiguous()."
        )
    return found.pop() if found else None


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Those of its dimensions; of one with a single element they say nothing."""
    return tuple(
        stride if size > 1 else 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def _strides_in_words(strides: tuple[int, ...] | None) -> str:
    return "of a contiguous tensor" if strides is None else str(list(strides))


def check_one_dtype(op: str, tensors: Iterable[Tensor]) -> None:
    """Raise TypeError if a collective is to fill tensors of another dtype than those that it reads."""
    found = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}
    if len(found) > 1 and not op.endswith("_coalesced"):
        raise TypeError(
            f"{op} got tensors of {' and '.join(sorted(found))}. No backend converts: what it reads and what "
            f"it fills must have one dtype."
        )
