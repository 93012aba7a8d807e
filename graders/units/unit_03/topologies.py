"""Nodes: their GPUs, NUMA nodes and cores, and which core belongs beside which GPU.

The real ones are LUMI-G (LUMI's documentation, "Distribution and binding"), a DGX A100, and a Grace Hopper.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Machine:
    """A machine, as lists of cores.

    numa_of_gpu: for each GPU its NUMA node. cores: for each NUMA node its cores, none where it is a GPU's
    memory. threads: hardware threads per core. reserved: CPUs that a job may not use; None: nothing is said.
    """

    numa_of_gpu: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    threads: int = 1
    reserved: frozenset[int] | None = None

    @cached_property
    def core_count(self) -> int:
        return sum(map(len, self.cores))

    def cpus(self, node: int) -> list[int]:
        """Cores of a NUMA node, then their second hardware threads, as Linux numbers them."""
        shifts = (thread * self.core_count for thread in range(self.threads))
        return [core + shift for shift in shifts for core in self.cores[node]]

    @property
    def expected(self) -> list[int]:
        """For each GPU the first core of its share of its NUMA node's usable cores."""
        return [self._first_core(gpu) for gpu in range(len(self.numa_of_gpu))]

    def _first_core(self, gpu: int) -> int:
        node = self.numa_of_gpu[gpu]
        usable = [core for core in self.cores[node] if core not in (self.reserved or ())]
        neighbours = [other for other, numa in enumerate(self.numa_of_gpu) if numa == node]
        return usable[neighbours.index(gpu) * (len(usable) // len(neighbours))]

    def misplaced(self, cpus: Sequence[set[int]]) -> list[list[int]]:
        """Of the CPUs that each rank is given, those that it should not have."""
        return [sorted(cpu for cpu in own if self._wrong(rank, cpu, cpus)) for rank, own in enumerate(cpus)]

    def _wrong(self, rank: int, cpu: int, cpus: Sequence[set[int]]) -> bool:
        """Whether a CPU is far from the rank's GPU, not the job's, or on a core of a neighbour's."""
        node = self.numa_of_gpu[rank]
        ranks = enumerate(zip(self.numa_of_gpu, cpus, strict=False))
        beside = [own for other, (numa, own) in ranks if numa == node and other != rank]
        taken = {theirs % self.core_count for own in beside for theirs in own}
        allowed = cpu in self.cpus(node) and cpu not in (self.reserved or ())
        return not allowed or cpu % self.core_count in taken

    @property
    def data(self) -> dict[str, Any]:
        """What an answer is told."""
        cpus = [sorted(self.cpus(node)) for node in range(len(self.cores))]
        allowed = sorted(cpu for own in cpus for cpu in own if cpu not in (self.reserved or ()))
        return {
            "numa_of_gpu": list(self.numa_of_gpu),
            "cpus_of_numa": cpus,
            "threads_per_core": self.threads,
            "allowed": None if self.reserved is None else allowed,
        }


def as_typed(node: dict[str, Any]) -> str:
    """What an answer is told of a node as a Python expression, short enough to be typed in."""
    cpus = ", ".join(map(_in_runs, node["cpus_of_numa"]))
    allowed = node["allowed"] and _in_runs(node["allowed"])
    return (
        f'{{"numa_of_gpu": {node["numa_of_gpu"]}, "cpus_of_numa": [{cpus}], '
        f'"threads_per_core": {node["threads_per_core"]}, "allowed": {allowed}}}'
    )


def _in_runs(numbers: Sequence[int]) -> str:
    """Ascending numbers as a list of Python, equal steps as a range: [*range(0, 16), *range(64, 80)]."""
    parts, rest = [], list(numbers)
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        count = 1
        while count < len(rest) and rest[count] - rest[count - 1] == step:
            count += 1
        if count < 3:
            parts.append(str(rest.pop(0)))
            continue
        by = f", {step}" if step != 1 else ""
        parts.append(f"*range({rest[0]}, {rest[count - 1] + 1}{by})")
        del rest[:count]
    return f"[{', '.join(parts)}]"


def blocks(nodes: int, each: int) -> tuple[tuple[int, ...], ...]:
    """The cores of so many NUMA nodes with `each` cores, numbered one node after the other."""
    return tuple(tuple(range(node * each, (node + 1) * each)) for node in range(nodes))


def in_turn(nodes: int, each: int) -> tuple[tuple[int, ...], ...]:
    """The same, numbered in turn over the NUMA nodes."""
    return tuple(tuple(range(node, nodes * each, nodes)) for node in range(nodes))


NOTHING: frozenset[int] = frozenset()
"""Reserved where the job may use all CPUs, and is told their numbers."""

LUMI_G = Machine(
    numa_of_gpu=(3, 3, 1, 1, 0, 0, 2, 2),
    cores=blocks(4, 16),
    threads=2,
    reserved=frozenset({*range(0, 64, 8), *range(64, 128)}),
)
"""One EPYC 7A53 with four MI250X of two GPUs each; the first core of each group of eight is the system's, and
a job gets no second threads unless it asks for them."""

WHOLE_LUMI_G = replace(LUMI_G, threads=1, reserved=NOTHING)
"""The same without second threads, and with no core for the system."""

DGX_A100 = Machine((3, 3, 1, 1, 7, 7, 5, 5), cores=blocks(8, 16), threads=2)
"""Two EPYC 7742 with eight A100, beside every second of eight NUMA nodes."""

GRACE_HOPPER = Machine(numa_of_gpu=(0,), cores=(tuple(range(72)), (), (), (), ()))
"""One GH200, as a node of Vista has: GPU memory is a NUMA node without cores."""
