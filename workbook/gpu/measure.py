"""Seconds and bytes of a call on a device, and the tables that they go into."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from course_lib.figures.style import Drawing
from course_lib.training.device import synchronize

Row = dict[str, str | float]
"""Heading, with its unit -> what stands there."""


@dataclass(frozen=True, slots=True)
class Table:
    """What was measured of one subject. name: its key in the JSON. text: how it was measured."""

    name: str
    title: str
    text: str
    rows: Sequence[Row]
    figure: Drawing


def median_seconds(call: Callable[[], object], device: torch.device, runs: int, warm_up: int = 2) -> float:
    """Median of `runs` calls, each from an idle device until the device is idle again."""
    for _ in range(warm_up):
        call()
    seconds = []
    for _ in range(runs):
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """The most that is allocated on a GPU during a call, beyond what is before it; 0 on a CPU: it keeps no
    such count.
    """
    if device.type == "cpu":
        call()
        return 0
    synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def dtype_name(dtype: torch.dtype) -> str:
    """As "bfloat16"."""
    return str(dtype).removeprefix("torch.")
