"""The names of operations: what a process group's method is called in `torch.distributed`."""

import sys
from types import FrameType, MappingProxyType

from torch.distributed import c10d_logger, distributed_c10d

OPERATIONS = MappingProxyType(
    {
        "send": "send",
        "recv": "recv",
        "recv_anysource": "recv",
        "broadcast": "broadcast",
        "reduce": "reduce",
        "allreduce": "all_reduce",
        "allreduce_coalesced": "all_reduce_coalesced",
        "gather": "gather",
        "allgather": "all_gather",
        "allgather_coalesced": "all_gather_coalesced",
        "_allgather_base": "all_gather_into_tensor",
        "all_gather_single": "all_gather_into_tensor",
        "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
        "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
        "scatter": "scatter",
        "reduce_scatter": "reduce_scatter",
        "_reduce_scatter_base": "reduce_scatter_tensor",
        "reduce_scatter_single": "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
        "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
        "alltoall": "all_to_all",
        "alltoall_base": "all_to_all_single",
        "all_to_all_single": "all_to_all_single",
        "barrier": "barrier",
        "monitored_barrier": "monitored_barrier",
    }
)
"""Method of `ProcessGroup` -> name of the operation in events. `*_object` calls appear as what they are made
of: an all_gather_object is two all_gathers, of the sizes and of the bytes. isend and irecv appear as "send"
and "recv", marked asynchronous."""

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
