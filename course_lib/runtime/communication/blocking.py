"""How the program called an operation, where that does not show in what reaches the process group."""

import sys
from collections.abc import Sequence
from types import FrameType

from torch.distributed import c10d_logger, distributed_c10d

_C10D = distributed_c10d.__file__
_C10D_WRAPPERS = c10d_logger.__file__
"""The decorator round every call of `torch.distributed`."""


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
