"""The device that a training's tensors are on: every loop of this folder asks here, nobody else decides."""

import torch
import torch.distributed as dist

from course_lib.errors import BadLaunch

CPU = torch.device("cpu")

GPU_LIBRARIES = frozenset({"nccl", "xccl"})
"""Backends that carry tensors from GPU to GPU; RCCL, AMD's, goes by the name of NCCL in torch."""


def best_device() -> torch.device:
    """For a process alone: the accelerator that torch finds (a CUDA or ROCm GPU, MPS ...), else the CPU."""
    # That PyTorch was built for one does not mean that there is one.
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or CPU


def rank_device(wanted: torch.device | str | None = None) -> torch.device:
    """For a rank: its own GPU where the default group carries GPUs' tensors by NCCL, else the CPU.

    The GPU becomes the process's current one, which is what NCCL's barrier and a plain "cuda" mean.
    wanted: a device to take instead, whatever carries its tensors: "cuda" is the rank's own GPU, over Gloo
    too. Raises BadLaunch where torch finds no such device.
    """
    accelerator = best_device()
    device = torch.device(wanted) if wanted else accelerator if _has_library(accelerator) else CPU
    if device.index is not None or device.type in ("cpu", "meta"):
        return device
    count = torch.accelerator.device_count() if device.type == accelerator.type else 0
    if not count:
        raise BadLaunch(
            f'A rank was asked to train on "{device}", but torch finds no such device here. Leave the device '
            f"out, or start the ranks where there is one. Ranks on a machine with fewer GPUs than ranks see "
            f'none, unless they are launched with backend="gloo".'
        )
    # A batch system may show each rank its own GPU alone, which is then number 0 whatever the local rank is.
    local_rank = dist.get_node_local_rank(fallback_rank=dist.get_rank() if dist.is_initialized() else 0)
    own = torch.device(device.type, local_rank % count)
    torch.accelerator.set_device_index(own.index)
    return own


def synchronize(device: torch.device) -> None:
    """Wait until the device has worked off its queue. A CPU has none: its calls return when they are done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _has_library(device: torch.device) -> bool:
    """Whether the default group, if there is one, has a library for tensors on such devices alone."""
    if not dist.is_initialized():
        return False
    # Such as "cpu:gloo,cuda:nccl".
    carriers = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    return carriers.get(device.type) in GPU_LIBRARIES
