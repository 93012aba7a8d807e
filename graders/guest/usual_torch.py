"""PyTorch as a new process has it, whatever a cell has left switched on.

Who looks for a NaN turns anomaly detection on, for the whole kernel, and then a backward pass raises where an
exercise asks that NaN stays to be seen. With another default dtype or device, or with gradients off, models
and inputs are others than the exercise says, or there are none. An answer is right or wrong beside all that.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def default_device() -> torch.device:
    """PyTorch's default device. Before 2.7 it cannot say which that is, once somebody has set it to None."""
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


@contextmanager
def usual_torch() -> Iterator[None]:
    """Anomaly detection is off in here, gradients are on, numbers are float32 and on the CPU unless somebody
    says otherwise; afterwards all is as before.
    """
    dtype, device = torch.get_default_dtype(), default_device()
    # Of the CPU nothing is said: who names it has PyTorch look at every call.
    elsewhere = device.type != "cpu"
    with torch.autograd.set_detect_anomaly(False), torch.enable_grad():
        torch.set_default_dtype(torch.float32)
        if elsewhere:
            torch.set_default_device(None)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            if elsewhere:
                torch.set_default_device(device)
