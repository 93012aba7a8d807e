"""What PyTorch's CUDA kernels move and hold beyond an operation's arguments and results, version by version.

On an H100 the softmax explains the peak memory of long sequences to the byte (`course_lib.published`).
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from course_lib.runtime.communication.torch_versions import before


@dataclass(frozen=True, slots=True)
class Kernel:
    """An operation of PyTorch, from one version on and before another (None: still so).

    times_moved: how many times its arguments and results are moved. temporary: whether it holds another
    tensor like its result while it runs. source: the file that says so.
    """

    operation: str
    times_moved: int
    temporary: bool
    source: str
    since: tuple[int, int] = (2, 6)
    until: tuple[int, int] | None = None


KERNELS = (
    # `softmax_backward_cuda_out` first makes the product of gradient and output.
    Kernel("_softmax_backward_data", 2, True, "aten/src/ATen/native/cuda/SoftMax.cu"),
    # It fills a copy.
    Kernel("masked_fill", 2, False, "aten/src/ATen/native/TensorAdvancedIndexing.cpp"),
    # It is a view.
    Kernel("_unsafe_view", 0, False, "aten/src/ATen/native/TensorShape.cpp"),
)
"""Read in November 2026, in PyTorch 2.6 to 2.13."""

_HERE = {
    kernel.operation: kernel
    for kernel in KERNELS
    if not before(kernel.since) and (kernel.until is None or before(kernel.until))
}
"""Those of the PyTorch that is installed."""


def times_moved(func: Any) -> int:
    """How many times an operation moves its arguments and results."""
    kernel = _HERE.get(func.overloadpacket.__name__)
    return 1 if kernel is None else kernel.times_moved


def temporary_bytes(func: Any, result: Any) -> int:
    """Bytes that an operation takes and gives back before it is over."""
    kernel = _HERE.get(func.overloadpacket.__name__)
    return result.nbytes if kernel and kernel.temporary and isinstance(result, Tensor) else 0
