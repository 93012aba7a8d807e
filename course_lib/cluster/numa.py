"""NUMA nodes: which there are, and how fast a core reads the memory of one (Linux)."""

import os
import time
from pathlib import Path

import torch

_NODES = Path("/sys/devices/system/node")
_BYTES = 256 * 2**20
"""More than a cache holds."""
_ROUNDS = 5


def numa_nodes(nodes: Path = _NODES) -> dict[int, list[int]]:
    """The NUMA nodes with CPUs that this process may use: number -> CPUs. One node where nothing is known."""
    usable = os.sched_getaffinity(0)
    found = {int(path.name.removeprefix("node")): _cpus(path) & usable for path in nodes.glob("node[0-9]*")}
    return {node: sorted(cpus) for node, cpus in sorted(found.items()) if cpus} or {0: sorted(usable)}


def read_bandwidth(home: int, reader: int) -> float:
    """Bytes a second at which CPU `reader` reads memory that CPU `home` was the first to touch.

    Linux gives memory a place when it is first touched: on that CPU's NUMA node.
    """
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        os.sched_setaffinity(0, {home})
        data = torch.ones(_BYTES // 4)
        os.sched_setaffinity(0, {reader})
        return _BYTES / min(_seconds_to_read(data) for _ in range(_ROUNDS))
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def _seconds_to_read(data: torch.Tensor) -> float:
    started = time.perf_counter()
    data.sum()
    return time.perf_counter() - started


def _cpus(node: Path) -> set[int]:
    text = (node / "cpumap").read_text().strip().replace(",", "")
    mask = int(text or "0", 16)
    return {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1}
