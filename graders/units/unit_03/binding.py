"""Unit 03, the cores beside the GPU."""

from collections.abc import Sequence

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call
from graders.units.unit_03.topologies import (
    DGX_A100,
    GRACE_HOPPER,
    LUMI_G,
    Machine,
    draw_nvidia,
    draw_plain,
    draw_reserved,
    draw_threads,
)


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "LUMI-G",
            1,
            "GPU 0 is beside NUMA node 3. Its allowed cores are 49-55 and 57-63; two GPUs share them, so "
            "GPU 0 gets the first seven, GPU 1 the other seven.",
        ),
        Criterion(
            "any machine",
            2,
            "Take everything from the text: which NUMA node a GPU is on, which cores that node has (a "
            "list may be 0,2,4,6), how many GPUs share them. GPU 10 comes after GPU 9.",
            needs=(),
        ),
        Criterion(
            "allowed cores",
            1,
            "Which cores are reserved differs from site to site: keep those of the node that are in "
            "Cpus_allowed_list, then deal them out.",
        ),
        Criterion(
            "hardware threads",
            1,
            "With two threads a core, half of a node's CPUs are second threads of the other half's cores, "
            "with four, three quarters are: a rank that starts there shares a core with another rank.",
            needs=("any machine",),
        ),
        Criterion(
            "NVIDIA",
            2,
            "The columns of nvidia-smi topo -m are separated by tabs, and the header tells which is NUMA "
            "Affinity; newer drivers have one more after it. Network cards have rows too. A NUMA node may "
            "have no cores.",
            needs=(),
        ),
    ),
    hints=(
        'Write a function that turns "0-3,8" into [0, 1, 2, 3, 8], and use it for all three kinds of lists.',
        r're.findall(r"NUMA node(\d+) CPU\(s\):[ \t]*(\S*)", topology) gives each node with its list.',
        "A node's cores in n equal blocks: block number k begins at k * (len(cores) // n).",
    ),
)
def cpu_bind_map(answer: Answer, rng: Rng) -> Findings:
    """A real machine of each maker, and drawn ones."""
    yield "LUMI-G", bindings(answer, [(LUMI_G.by_rocm_smi(), LUMI_G)])
    for criterion, machines in (
        ("any machine", draw_plain(rng)),
        ("allowed cores", draw_reserved(rng)),
        ("hardware threads", draw_threads(rng)),
    ):
        yield criterion, bindings(answer, [(machine.by_rocm_smi(), machine) for machine in machines])
    (drawn,) = draw_nvidia(rng)
    real = [(DGX_A100.by_nvidia_smi(12, newer=False), DGX_A100), (drawn.by_nvidia_smi(2, newer=True), drawn)]
    alone = (GRACE_HOPPER.by_nvidia_smi(0, newer=True), GRACE_HOPPER)
    yield "NVIDIA", bindings(answer, [*real, alone])


def bindings(answer: Answer, cases: Sequence[tuple[str, Machine]]) -> Finding:
    """Passes if the answer finds the core of every GPU in each text, which tells of the machine beside it."""

    def one(text: str, machine: Machine) -> Finding:
        gpus = ", ".join(f"GPU {gpu} on node {node}" for gpu, node in enumerate(machine.numa_of_gpu))
        return compare.equal(answer.call(call, text), machine.expected, f"cores for {gpus}")

    return compare.first_failure(one(*case) for case in cases)
