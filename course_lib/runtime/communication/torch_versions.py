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
    r"(all_gather(_into)?_tensor|reduce_scatter_tensor)\w*` is deprecated"
)
"""How the warnings begin."""


def before(version: tuple[int, ...]) -> bool:
    """Whether the PyTorch that is installed is older."""
    return bool(TorchVersion(torch.__version__) < version)  # type: ignore[operator]


class Handle(dist.Work):
    """The handle of a call, which lives until somebody has waited for it, whoever has it.

    Before 2.7, C++ that keeps a handle, as DistributedDataParallel does, keeps nothing that Python has added
    to it, so that its `wait` would wait for nobody, for ever.
    """

    _waited_for_by_nobody: ClassVar[set["Handle"]] = set()

    def __init__(self) -> None:
        super().__init__()
        if _FORGETS_PYTHON:
            self._waited_for_by_nobody.add(self)

    def let_go(self) -> None:
        """Nobody is going to wait any more."""
        self._waited_for_by_nobody.discard(self)


_FORGETS_PYTHON = before((2, 7))

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


say_nothing_of_old_names()
