"""NUMA nodes: which there are, how fast a core reads the memory of one (Linux), what tools say of them."""

import os
import re
import time
from pathlib import Path
from typing import Any

import torch

from course_lib.threads import one_thread

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
    before = os.sched_getaffinity(0)
    with one_thread():
        try:
            os.sched_setaffinity(0, {home})
            data = torch.ones(_BYTES // 4)
            os.sched_setaffinity(0, {reader})
            return _BYTES / min(_seconds_to_read(data) for _ in range(_ROUNDS))
        finally:
            os.sched_setaffinity(0, before)


def _seconds_to_read(data: torch.Tensor) -> float:
    started = time.perf_counter()
    data.sum()
    return time.perf_counter() - started


def _cpus(node: Path) -> set[int]:
    text = (node / "cpumap").read_text().strip().replace(",", "")
    mask = int(text or "0", 16)
    return {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1}


def read_topology(text: str) -> dict[str, Any]:
    """A node, from what commands print about it, one after the other: `rocm-smi --showtoponuma` or
    `nvidia-smi topo -m`; `lscpu`; and, if wanted, `grep Cpus_allowed_list /proc/self/status`.

    Returns "numa_of_gpu", for each GPU the number of its NUMA node; "cpus_of_numa", for each NUMA node its
    CPUs, none where it is a GPU's memory; "threads_per_core"; and "allowed", the CPUs that the job may use,
    or None.
    """
    listed = {int(node): cpus for node, cpus in re.findall(r"NUMA node(\d+) CPU\(s\):[ \t]*(\S*)", text)}
    threads = re.search(r"Thread\(s\) per core:\s*(\d+)", text)
    allowed = re.search(r"Cpus_allowed_list:\s*(\S+)", text)
    gpus = re.findall(r"GPU\[\d+\]\s*: \(Topology\) Numa Node: (\d+)", text) or _numa_affinities(text)
    return {
        "numa_of_gpu": [int(node) for node in gpus],
        "cpus_of_numa": [_listed(listed[node]) for node in sorted(listed)],
        "threads_per_core": int(threads[1]) if threads else 1,
        "allowed": _listed(allowed[1]) if allowed else None,
    }


def _numa_affinities(text: str) -> list[str]:
    """Of nvidia-smi's table, whose columns are separated by tabs. Network cards have rows too."""
    rows = [line.split("\t") for line in text.splitlines()]
    place = next((row.index("NUMA Affinity") for row in rows if "NUMA Affinity" in row), 0)
    return [row[place] for row in rows if place and re.fullmatch(r"GPU\d+", row[0])]


def _listed(text: str) -> list[int]:
    """The numbers of "0-15,64-79"; none of an empty text."""
    ends = [part.split("-") for part in text.split(",") if part]
    return [cpu for end in ends for cpu in range(int(end[0]), int(end[-1]) + 1)]
