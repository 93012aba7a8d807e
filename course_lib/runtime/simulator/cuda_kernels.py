"""What PyTorch's CUDA kernels move and hold beyond an operation's arguments and results.

Read from PyTorch 2.6 to 2.13: aten/src/ATen/native/cuda/SoftMax.cu (`softmax_backward_cuda_out` first makes
the product of gradient and output) and aten/src/ATen/native/TensorAdvancedIndexing.cpp (`masked_fill` fills a
copy). On an H100 the first explains the peak memory of long sequences to the byte (`course_lib.published`).
"""

from typing import Any

from torch import Tensor

_TIMES_MOVED = {"_softmax_backward_data": 2, "masked_fill": 2, "_unsafe_view": 0}
"""Operation -> how many times its arguments and results are moved. `_unsafe_view` is a view."""

_TEMPORARIES = {"_softmax_backward_data"}
"""Operations that hold another tensor like their result while they run."""


def times_moved(func: Any) -> int:
    """How many times an operation moves its arguments and results."""
    return _TIMES_MOVED.get(func.overloadpacket.__name__, 1)


def temporary_bytes(func: Any, result: Any) -> int:
    """Bytes that an operation takes and gives back before it is over."""
    temporary = func.overloadpacket.__name__ in _TEMPORARIES and isinstance(result, Tensor)
    return result.nbytes if temporary else 0
