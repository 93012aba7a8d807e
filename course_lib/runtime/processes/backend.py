"""Which library carries the messages of real ranks, and which of them see a GPU.

Ranks that have a GPU each take NCCL and train there. Others take Gloo, train on CPUs and see none: libraries
ask what the machine has, and not where a tensor is. With Gloo asked for by name, ranks share the GPUs.
"""

import torch.distributed as dist

from course_lib.errors import BadLaunch

BOTH = "cpu:gloo,cuda:nccl"
"""In `init_process_group`'s words: Gloo for tensors on CPUs, NCCL for those on GPUs."""

NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
"""Environment variables with which a process, before it uses a GPU, sees none. AMD's takes "" for "all"."""


def backend_for(wanted: str | None, *, ranks: int, gpus: int, remedy: str) -> str:
    """The backend of a launch in `init_process_group`'s words: Gloo alone, or with NCCL for tensors on GPUs.

    wanted: what the caller asked for; None: NCCL where it is possible. ranks: of a machine. gpus: of that
    machine. remedy: what gives each rank a GPU there, for the sentence that says why NCCL is impossible.
    Raises BadLaunch.
    """
    possible = dist.is_nccl_available() and gpus >= ranks
    match wanted:
        case None:
            return BOTH if possible else "gloo"
        case "gloo":
            return "gloo"
        case "nccl" if possible:
            return BOTH
        case "nccl":
            raise BadLaunch(
                f"NCCL needs a GPU for each rank: a node here has {gpus} GPUs and {ranks} ranks. "
                f'{remedy}, or leave the backend out, or say backend="gloo".'
            )
        case other:
            raise BadLaunch(f'There is no backend "{other}" here. The backends are "gloo" and "nccl".')


def seen_gpus(wanted: str | None, backend: str) -> dict[str, str]:
    """Environment variables of the ranks that say which GPUs they see: all, or none.

    wanted: the backend that the caller asked for. backend: what `backend_for` made of it.
    """
    return NO_GPU if wanted is None and backend == "gloo" else {}
