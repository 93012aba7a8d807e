"""Which library carries the messages of real ranks: Gloo, or NCCL where each has a GPU."""

import torch.distributed as dist

from course_lib.errors import BadLaunch


def backend_for(wanted: str | None, *, ranks: int, gpus: int, remedy: str) -> str:
    """The backend of a launch in `init_process_group`'s words: Gloo alone, or with NCCL for tensors on GPUs.

    wanted: what the caller asked for; None: NCCL where it is possible. ranks: of a machine. gpus: of that
    machine. remedy: what gives each rank a GPU there, for the sentence that says why NCCL is impossible.
    Raises BadLaunch.
    """
    possible = dist.is_nccl_available() and gpus >= ranks
    match wanted:
        case None:
            return "cpu:gloo,cuda:nccl" if possible else "gloo"
        case "gloo":
            return "gloo"
        case "nccl" if possible:
            return "cpu:gloo,cuda:nccl"
        case "nccl":
            raise BadLaunch(
                f"NCCL needs a GPU for each rank: a node here has {gpus} GPUs and {ranks} ranks. "
                f'{remedy}, or leave the backend out, or say backend="gloo".'
            )
        case other:
            raise BadLaunch(f'There is no backend "{other}" here. The backends are "gloo" and "nccl".')
