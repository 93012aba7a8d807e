"""How the program called an operation, where that does not show in what reaches the process group."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import c10d_logger, distributed_c10d

from course_lib.runtime.communication.torch_versions import before

_C10D = distributed_c10d.__file__
_C10D_WRAPPERS = c10d_logger.__file__
"""The decorator round every call of `torch.distributed`."""
_INTERCEPTED = str(Path(__file__).with_name("intercepted_group.py"))
_TOLD_OF_SOME = before((2, 7))
"""Whether PyTorch tells the group of `async_op=True` only for some collectives."""


def called_blocking(operation: str) -> bool:
    """Whether the program called `dist.send` or `dist.recv` itself, and not isend or irecv.

    The blocking call is the other and a wait, so it is looked for among torch's frames on the stack.
    """
    frame: FrameType | None = sys._getframe(1)
    inside_torch = False
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _C10D:
            if code.co_name == operation:
                return True
            inside_torch = True
        elif inside_torch and code.co_filename != _C10D_WRAPPERS:
            return False
        frame = frame.f_back
    return False


def called_asynchronously(opts: Any) -> bool:
    """Whether a collective was called with `async_op=True`, of which this PyTorch may not tell the group."""
    if not _TOLD_OF_SOME or opts is None:
        return bool(getattr(opts, "asyncOp", False))
    frame = _torchs_frame()
    # C++ waits later.
    return bool(frame.f_locals.get("async_op") if frame else getattr(opts, "asyncOp", True))


def called_from_cpp() -> bool:
    """Whether no function of `torch.distributed` has made the call, but C++."""
    return _torchs_frame() is None


def _torchs_frame() -> FrameType | None:
    """That of the function of `torch.distributed` that called the group, if one did."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, _INTERCEPTED):
        frame = frame.f_back
    return frame if frame is not None and frame.f_code.co_filename == _C10D else None


def member(members: Sequence[int], position: int) -> int:
    """The global rank at a position of a group. torch does not check the number of a peer."""
    if not 0 <= position < len(members):
        if list(members) != list(range(len(members))):
            raise ValueError(
                f"There is no place {position} in the group of ranks {list(members)}: its places are 0 to "
                f"{len(members) - 1}. dist.get_group_rank(group, rank) is the place of a rank."
            )
        if len(members) == 1:
            raise ValueError(f"There is no rank {position} in a group of 1: its only rank is 0.")
        advice = " A neighbour on a ring is (rank + 1) % world_size."
        raise ValueError(
            f"There is no rank {position} in a group of {len(members)}: its ranks are 0 to "
            f"{len(members) - 1}.{advice if position in (-1, len(members)) else ''}"
        )
    return members[position]
