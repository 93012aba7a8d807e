"""Waiting for a rank's device where that is a CPU and the machine has a GPU.

torch's PowerSGD waits for its tensors' device wherever there is a GPU, and torch refuses to wait for a CPU,
where nothing is queued.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def unless_cpu(wait_for_gpu: Callable[..., None]) -> Callable[..., None]:
    """`torch.cuda.synchronize`, given as an argument, that returns at once for a CPU."""

    @wraps(wait_for_gpu)
    def synchronize(device: Any = None) -> None:
        if not (isinstance(device, str | torch.device) and torch.device(device).type == "cpu"):
            wait_for_gpu(device)

    return synchronize
