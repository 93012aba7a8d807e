"""What tools print about a machine's GPUs, NUMA nodes and cores, and which core belongs beside which GPU.

The forms are those of real machines: `rocm-smi --showtoponuma` of LUMI-G (LUMI's documentation, "Distribution
and binding"), `nvidia-smi topo -m` of a DGX A100 and of today's drivers, which print one column more, lscpu,
and the line of /proc/self/status that says which cores a job may use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from graders.grading.kit import Rng


@dataclass(frozen=True)
class Machine:
    """A machine, as lists of cores.

    numa_of_gpu: for each GPU its NUMA node. cores: for each NUMA node its cores, none where it is a GPU's
    memory. threads: hardware threads a core. reserved: CPUs that a job may not use; None: nothing is said.
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

    def lscpu(self) -> str:
        """The lines of lscpu that matter, among others."""
        nodes = [f"NUMA node{node} CPU(s):" for node in range(len(self.cores))]
        rows = {
            "Architecture:": "x86_64",
            "CPU(s):": str(self.core_count * self.threads),
            "On-line CPU(s) list:": f"0-{self.core_count * self.threads - 1}",
            "Thread(s) per core:": str(self.threads),
            "Core(s) per socket:": str(self.core_count),
            "Socket(s):": "1",
            "NUMA node(s):": str(len(self.cores)),
            **{name: _list(self.cpus(node)) for node, name in enumerate(nodes)},
        }
        return "".join(f"{name:<25}{value}".rstrip() + "\n" for name, value in rows.items())

    def status(self) -> str:
        """The line of /proc/self/status; nothing where nothing is reserved."""
        if self.reserved is None:
            return ""
        everything = (cpu for node in range(len(self.cores)) for cpu in self.cpus(node))
        allowed = [cpu for cpu in everything if cpu not in self.reserved]
        return f"Cpus_allowed_list:\t{_list(sorted(allowed))}\n"

    def by_rocm_smi(self) -> str:
        """The whole text, with AMD's tool."""
        rows = [
            f"GPU[{gpu}]\t\t: (Topology) Numa {what}: {node}"
            for gpu, node in enumerate(self.numa_of_gpu)
            for what in ("Node", "Affinity")
        ]
        title = f"{' ROCm System Management Interface ':=^90}\n{' Numa Nodes ':=^90}"
        end = f"{' End of ROCm SMI Log ':=^90}"
        return "\n".join([title, *rows, end, self.lscpu()]) + self.status()

    def by_nvidia_smi(self, cards: int, newer: bool) -> str:
        """The whole text, with NVIDIA's tool. cards: network cards, which have columns and rows too.

        newer: with the column of a GPU's own NUMA node, which today's drivers print.
        """
        gpus = [f"GPU{number}" for number in range(len(self.numa_of_gpu))]
        names = [*gpus, *(f"NIC{number}" for number in range(cards))]
        header = ["", *names, "CPU Affinity", "NUMA Affinity", *(["GPU NUMA ID"] if newer else [])]
        lines = ["\t".join(header)]
        for number, name in enumerate(names):
            links = [" X " if other == name else _link(name, other) for other in names]
            lines.append("\t".join([name, *links, *self._affinity(number, newer)]))
        return "\n".join([*lines, _LEGEND, self.lscpu()]) + self.status()

    def _affinity(self, number: int, newer: bool) -> list[str]:
        """The last columns of a row; a network card has none."""
        if number >= len(self.numa_of_gpu):
            return []
        node = self.numa_of_gpu[number]
        return [_list(self.cpus(node)), str(node), *(["", "N/A"] if newer else [])]


_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def _link(name: str, other: str) -> str:
    return "NV12" if name.startswith("GPU") and other.startswith("GPU") else "SYS"


def _list(numbers: Sequence[int]) -> str:
    """Numbers as Linux lists them: 0-15,128-143; even ones, one by one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _blocks(nodes: int, each: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(node * each, (node + 1) * each)) for node in range(nodes))


LUMI_G = Machine(
    numa_of_gpu=(3, 3, 1, 1, 0, 0, 2, 2),
    cores=_blocks(4, 16),
    threads=2,
    reserved=frozenset({*range(0, 64, 8), *range(64, 128)}),
)
"""One EPYC 7A53 with four MI250X of two GPUs each; the first core of each group of eight is the system's, and
a job gets no second threads unless it asks for them."""

DGX_A100 = Machine(numa_of_gpu=(3, 3, 1, 1, 7, 7, 5, 5), cores=_blocks(8, 16), threads=2)
"""Two EPYC 7742 with eight A100, beside every second of eight NUMA nodes."""

GRACE_HOPPER = Machine(numa_of_gpu=(0,), cores=(tuple(range(72)), (), (), (), ()))
"""One GH200, as a node of Vista has: GPU memory is a NUMA node without cores."""


def draw_plain(rng: Rng) -> list[Machine]:
    """Twelve GPUs, three a NUMA node; NUMA nodes without GPU; cores numbered in turn over two sockets."""
    first = rng.integer(0, 3)
    nodes = [(first + step) % 4 for step in (0, 3, 1, 2)]
    many = Machine(tuple(node for node in nodes for _ in range(3)), _blocks(4, 3 * rng.integer(4, 8)))
    some = Machine(tuple(nodes[:2]), _blocks(4, rng.integer(6, 12)))
    half = rng.integer(8, 12)
    in_turn = Machine((1, 0, 1, 0), (tuple(range(0, 2 * half, 2)), tuple(range(1, 2 * half, 2))))
    return [many, some, in_turn]


def draw_reserved(rng: Rng) -> list[Machine]:
    """The first cores of each half of a NUMA node are reserved: one to three of them, or the last one."""
    each = 2 * rng.integer(6, 9)
    starts = range(0, 4 * each, each // 2)
    taken = rng.integer(2, 3)
    first = frozenset(start + core for start in starts for core in range(taken))
    last = frozenset(start + each // 2 - 1 for start in starts)
    gpus = (2, 2, 0, 0, 3, 3, 1, 1)
    return [Machine(gpus, _blocks(4, each), reserved=gone) for gone in (first, last)]


def draw_threads(rng: Rng) -> list[Machine]:
    """Two hardware threads a core, or four, all of them usable, with and without the line that says so; one
    core too few for another share.
    """
    each = rng.integer(3, 8)
    even = Machine((1, 1, 0, 0), _blocks(2, 4 * each), threads=2)
    odd = Machine((1, 1, 1, 0, 0, 0), _blocks(2, 3 * each + 2), threads=2, reserved=frozenset())
    four = Machine((0, 0, 1, 1), _blocks(2, 2 * each), threads=4)
    return [even, odd, four]


def draw_nvidia(rng: Rng) -> list[Machine]:
    """Two sockets, the GPUs of the second first."""
    far = rng.integer(1, 2)
    return [Machine((far, far, 0, 0), _blocks(3, 2 * rng.integer(8, 28)), threads=2)]
