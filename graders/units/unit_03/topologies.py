"""Nodes: their GPUs, NUMA nodes and cores, and which core belongs beside which GPU.

The real ones are LUMI-G (LUMI's documentation, "Distribution and binding"), a DGX A100, and a Grace Hopper.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from graders.grading.kit import Rng


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

    @property
    def as_typed(self) -> str:
        """What an answer is told, as a Python expression, short enough to be typed in."""
        told = self.data
        cpus = ", ".join(map(_in_runs, told["cpus_of_numa"]))
        allowed = told["allowed"] and _in_runs(told["allowed"])
        return (
            f'{{"numa_of_gpu": {told["numa_of_gpu"]}, "cpus_of_numa": [{cpus}], '
            f'"threads_per_core": {self.threads}, "allowed": {allowed}}}'
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

DGX_A100 = Machine((3, 3, 1, 1, 7, 7, 5, 5), cores=blocks(8, 16), threads=2, reserved=NOTHING)
"""Two EPYC 7742 with eight A100, beside every second of eight NUMA nodes."""

GRACE_HOPPER = Machine(numa_of_gpu=(0,), cores=(tuple(range(72)), (), (), (), ()))
"""One GH200, as a node of Vista has: GPU memory is a NUMA node without cores."""


def draw_plain(rng: Rng) -> list[Machine]:
    """NUMA nodes without GPU; twelve GPUs, three per NUMA node; cores numbered in turn over two sockets."""
    first = rng.integer(0, 3)
    nodes = [(first + step) % 4 for step in (0, 3, 1, 2)]
    # Two cores of each NUMA node are left over, and one.
    many = Machine(tuple(node for node in nodes for _ in range(3)), blocks(4, 3 * rng.integer(4, 8) + 2))
    some = Machine(tuple(nodes[:2]), blocks(4, rng.integer(6, 12)))
    # So many, and so large, that a set does not keep them in their order.
    numbered = Machine((1, 0, 1, 0), in_turn(2, 17))
    unlike = Machine((1, 0, 0, 1, 0), _unlike(rng.integer(3, 8)))
    return [replace(machine, reserved=NOTHING) for machine in (some, many, numbered, unlike)]


def _unlike(each: int) -> tuple[tuple[int, ...], ...]:
    """Cores of two NUMA nodes, of which one has more: for three GPUs and for two, which have other shares."""
    return tuple(range(3 * each)), tuple(range(3 * each, 7 * each))


def draw_reserved(rng: Rng, turns: bool) -> list[Machine]:
    """The first two or three cores of each half of a NUMA node are reserved, or its last one; or those of the
    first half alone, so that the halves are no shares. turns: also more of them in one NUMA node than in the
    other, where cores are numbered in turn.
    """
    each = 2 * rng.integer(6, 9)
    starts = range(0, 4 * each, each // 2)
    taken = rng.integer(2, 3)
    first = frozenset(start + core for start in starts for core in range(taken))
    last = frozenset(start + each // 2 - 1 for start in starts)
    begin = frozenset(core for core in first if core % each < each // 2)
    gpus = (2, 2, 0, 0, 3, 3, 1, 1)
    machines = [Machine(gpus, blocks(4, each), reserved=gone) for gone in (first, last, begin)]
    numbered = Machine((0, 1, 1, 0), in_turn(2, each), reserved=frozenset({0, 1, 2, 4, 6, 9}))
    return [*machines, *[numbered] * turns]


def draw_threads(rng: Rng, any_cores: bool) -> list[Machine]:
    """Two hardware threads per core, or four, all of them usable; one core too few for another share; a NUMA
    node without a CPU.

    any_cores: also cores numbered in turn, and NUMA nodes with unlike numbers of GPUs and cores.
    """
    each = rng.integer(3, 8)
    even = Machine((1, 1, 0, 0), blocks(2, 4 * each), threads=2)
    odd = Machine((1, 1, 1, 0, 0, 0), blocks(2, 3 * each + 2), threads=2)
    four = Machine((0, 0, 1, 1), blocks(2, 2 * each), threads=4)
    empty = Machine((1, 0, 0, 1), (*blocks(2, 2 * each), ()), threads=2)
    numbered = Machine((1, 0, 1, 0), in_turn(2, 2 * each), threads=2)
    uneven = Machine((1, 0, 0, 1, 0), _unlike(each), threads=2)
    several = [even, odd, four, empty, *[numbered, uneven] * any_cores]
    return [replace(machine, reserved=NOTHING) for machine in several]


def second_threads_left(rng: Rng) -> Machine:
    """Two GPUs beside a NUMA node of which the first cores are reserved, but not their second threads."""
    each = 2 * rng.integer(4, 8)
    return Machine((1, 0, 0, 1), blocks(2, each), threads=2, reserved=frozenset({0, 1, each, each + 1}))
