"""NUMA nodes: what tools say of a node's GPUs and CPUs."""

import re
from typing import Any


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
