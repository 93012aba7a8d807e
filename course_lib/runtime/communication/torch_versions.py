"""What differs between versions of PyTorch, so that this course runs on each from 2.6 on.

From 2.13 on `all_gather_into_tensor` and `reduce_scatter_tensor` warn that they have new names. Most
documentation has the old ones, and an older PyTorch has no others: so students and solutions write these, and
nothing is said about it, neither under a cell nor under a verdict. The methods of a process group, which
torch calls, were renamed as well.
"""

import warnings
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

RENAMED = (
    r"`torch\.distributed\.(_functional_collectives\.)?"
    r"((all_)?gather(_into)?_tensor|reduce_scatter_tensor)\w*` is deprecated"
)
"""How the warnings begin."""


def before(version: tuple[int, ...]) -> bool:
    """Whether the PyTorch that is installed is older."""
    return bool(TorchVersion(torch.__version__) < version)  # type: ignore[operator]


FORGETS_PYTHON = before((2, 7))
"""Whether C++ that keeps a handle, as DistributedDataParallel does, keeps nothing that Python has added:
its `wait` waits for nobody then, for ever.
"""


class Handle(dist.Work):
    """The handle of a call."""

    _kept: ClassVar[list["Handle"]] = []
    waited_for = False

    def keep(self) -> None:
        """Let it live for C++ until somebody has waited for it, and another is kept."""
        self._kept[:] = [*(each for each in self._kept if not each.waited_for), self]


_FORMER = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}
"""A method of torch's process groups since 2.13 -> what it was called before."""

NAMES = {now: now if hasattr(dist.ProcessGroup, now) else former for now, former in _FORMER.items()}
"""A method's name of today -> its name in the PyTorch that is installed."""


def say_nothing_of_old_names() -> None:
    """No warning of these, in this process, from now on; all other warnings stay."""
    warnings.filterwarnings("ignore", RENAMED, FutureWarning)


def keep_device_guards() -> None:
    """Fake tensors, by which DTensor finds a layout, have a CUDA build make a guard where it finds no GPU.

    In 2.11 that ends with the thread that asked for it, as the threads of simulated ranks do, and whoever
    asks next crashes. Only fake tensors on GPUs need it.
    """
    torch._C._ensureCUDADeviceGuardSet = lambda: None


say_nothing_of_old_names()
keep_device_guards()
