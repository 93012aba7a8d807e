"""The grader of `cpu_bind_map`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_03.topologies import (
    DGX_A100,
    GRACE_HOPPER,
    LUMI_G,
    Machine,
    as_typed,
    blocks,
    in_turn,
)

RESERVED: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "": lambda own: (),
    "the first two of each half are reserved": lambda own: (*own[:2], *own[len(own) // 2 :][:2]),
    "the first three are reserved": lambda own: own[:3],
    "the last is reserved": lambda own: own[-1:],
}
"""Which of a NUMA node's cores a job may not use; their second threads it may."""
OTHERS = ((2, 0), (3, 3, 3, 1, 1, 1, 0, 0, 0, 2, 2, 2), (1, 0, 0, 1, 0))


@dataclass(frozen=True, slots=True)
class Node:
    """gpus: the NUMA node of each. each: cores of a NUMA node. real: a real machine, in place of all."""

    gpus: tuple[int, ...] = feature((3, 3, 1, 1, 0, 0, 2, 2), lambda gpus: f"GPUs beside {[*gpus]}")
    each: int = feature(16, "{} cores a NUMA node")
    in_turn: bool = feature(False, lambda on: "numbered in turn over the NUMA nodes" if on else "")
    reserved: str = feature("", "{}")
    threads: int = feature(1, lambda threads: f"{threads} threads a core" if threads > 1 else "")
    real: Machine | None = None

    @property
    def machine(self) -> Machine:
        cores = in_turn(4, self.each) if self.in_turn else blocks(4, self.each)
        reserved = frozenset(core for own in cores for core in RESERVED[self.reserved](own))
        return self.real or Machine(self.gpus, cores, self.threads, reserved)


def possible(node: Node) -> bool:
    """A machine that there is is as it is."""
    return node.real is None or replace(node, real=None) == Node()


@of_function(
    base=Node(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "any machine",
            2,
            "The cores of a NUMA node are cut into one block for each of its GPUs, and a GPU's rank gets the "
            "first core of its block. What is left over stays at the end. Take all numbers from node.",
            vary=vary(each=(8, 13, 37), in_turn=(True,), gpus=OTHERS),
        ),
        Criterion(
            "allowed cores",
            2,
            "Which cores are reserved differs from site to site: keep those of the node that are "
            "allowed, then cut them into blocks.",
            vary=vary(reserved=tuple(RESERVED)[1:]),
        ),
        Criterion(
            "hardware threads",
            2,
            "With two threads per core, half of a node's CPUs are no cores of their own but second threads; "
            "with four, three quarters are. Leave these out before you cut.",
            vary=vary(threads=(2, 4)),
        ),
        Criterion(
            "real machines",
            1,
            "On LUMI, GPU 0 is beside NUMA node 3. Its allowed cores are 49-55 and 57-63; two GPUs share "
            "them, so GPU 0 gets the first seven, GPU 1 the other seven. Where allowed is None, as on a "
            "Grace Hopper, the job may use all cores.",
            vary=vary(real=(LUMI_G, DGX_A100, GRACE_HOPPER)),
            needs=("any machine", "allowed cores", "hardware threads"),
        ),
    ),
    hints=(
        "Which CPUs are cores at all, which of these may the job use, and which are beside the GPU?",
        "How many GPUs share a NUMA node, and how many of them have a smaller number than this one?",
        "Where a core has t hardware threads, n CPUs are n / t cores, and the first threads of all of them "
        "have the numbers below n / t.",
        "If a node's cores are cut into n equal blocks, with which of them does block number k begin?",
    ),
    arguments=lambda rng, node: [node.machine.data],
    possible=possible,
    written=lambda given: as_typed(given[0]),
)
def cpu_bind_map(node: Node, given: Arguments) -> Expected:
    """The first core of each GPU's block."""
    return Expected(node.machine.expected, {"node": given[0]}, returned=None)
