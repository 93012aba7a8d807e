"""Unit 03, the cores beside the GPU."""

from collections.abc import Sequence

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call
from graders.units.unit_03.topologies import (
    DGX_A100,
    GRACE_HOPPER,
    LUMI_G,
    Machine,
    blocks,
    draw_plain,
    draw_reserved,
    draw_threads,
)


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "any machine",
            2,
            "Take everything from the node: which NUMA node a GPU is on, which cores that one has (they may "
            "be 0, 2, 4, 6, or none at all), how many GPUs share them.",
        ),
        Criterion(
            "allowed cores",
            2,
            "Which cores are reserved differs from site to site: keep those of the node that are "
            "allowed, then deal them out.",
        ),
        Criterion(
            "hardware threads",
            2,
            "With two threads a core, half of a node's CPUs are second threads of the other half's cores, "
            "with four, three quarters are: a rank that starts there shares a core with another rank.",
        ),
        Criterion(
            "LUMI-G",
            1,
            "GPU 0 is beside NUMA node 3. Its allowed cores are 49-55 and 57-63; two GPUs share them, so "
            "GPU 0 gets the first seven, GPU 1 the other seven.",
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
)
def cpu_bind_map(answer: Answer, rng: Rng) -> Findings:
    """Real machines, and drawn ones."""
    yield "any machine", bindings(answer, [*draw_plain(rng), GRACE_HOPPER])
    yield "allowed cores", bindings(answer, draw_reserved(rng))
    yield "hardware threads", bindings(answer, [*draw_threads(rng), DGX_A100])
    yield "LUMI-G", bindings(answer, [LUMI_G])


def bindings(answer: Answer, machines: Sequence[Machine]) -> Finding:
    """Passes if the answer finds the core of every GPU of each machine."""

    def one(machine: Machine) -> Finding:
        what = f"cores for {machine.as_typed}"
        return compare.equal(answer.call(call, machine.data), machine.expected, what)

    return compare.first_failure(map(one, machines))


SLIDE = (12, 16, 4, 6, 0, 2, 8, 12)
"""The zeros behind fe in each mask of the lecture; the second and the last are misprints of 14 and 10."""


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "the lecture's masks",
            2,
            "Bit b of a mask stands for CPU b. The numbers are hexadecimal, with 0x or without: two of their "
            "digits are eight CPUs.",
        ),
        Criterion(
            "beside the GPU",
            1,
            "Rank r has GPU r, and its CPUs are those of that GPU's NUMA node, whatever their numbers.",
        ),
        Criterion(
            "allowed",
            1,
            "A CPU beside the GPU may still be the system's, or a second thread.",
            needs=("the lecture's masks", "beside the GPU"),
        ),
        Criterion(
            "one rank a core",
            1,
            "Two ranks get in each other's way on one core, on one thread or on two: with n cores, the "
            "threads of core c are the CPUs c, c + n, c + 2 n, ... Both ranks are told of it.",
            needs=("the lecture's masks", "beside the GPU"),
        ),
        Criterion(
            "maps",
            1,
            "map_cpu names one CPU a rank: decimal, or with 0x hexadecimal.",
            needs=("the lecture's masks", "beside the GPU"),
        ),
    ),
    hints=(
        "What has to be true of a CPU so that a rank may have it? Write one condition after the other.",
        "Which core is a CPU a thread of, if the node has n cores?",
        "What does int(text, 16) make of 0xfe, and of fe? And int(text, 0) of 0x10, and of 10?",
    ),
)
def misplaced_cpus(answer: Answer, rng: Rng) -> Findings:
    """The lecture's slide, then options for drawn machines of which some CPUs are wrong."""
    slide = [0xFE << 4 * zeros for zeros in SLIDE]
    yield "the lecture's masks", misplaced(answer, LUMI_G, [_bits(mask) for mask in slide], _masks(slide))

    each = 4 * rng.integer(2, 5)
    plain = Machine((1, 1, 0, 0), blocks(2, each))  # A GPU more than there are ranks.
    shifted = [_range(each - 1, 3), _range(each + 4, 2), _range(each - 2, 4)]
    in_turn = Machine((1, 0), (tuple(range(0, 2 * each, 2)), tuple(range(1, 2 * each, 2))))
    yield "beside the GPU", _all(answer, [(plain, shifted), (in_turn, [_range(0, 4), _range(2, 3)])])

    job = Machine(
        (0, 1), blocks(2, each), threads=2, reserved=frozenset({0, each, *range(2 * each, 4 * each)})
    )
    with_threads = [{0, 1, 2, 2 * each + 1}, {each + 1, 3 * each + 1, 3 * each + 2}]
    yield "allowed", (rights := _all(answer, [(job, with_threads), (job, [{1, 2}, {each + 1}])]))

    # The job may not use the second thread of core 3; whoever runs there is in the way all the same.
    # The third NUMA node has no CPU, as where it is a GPU's memory.
    free = Machine((0, 0, 1), (*blocks(2, each), ()), threads=2, reserved=frozenset({2 * each + 3}))
    shared = [{0, 1, 2, 2 * each + 3}, {2, 3, 2 * each}, {each, 3 * each}]
    four = Machine((0, 0, 0), blocks(1, each), threads=4)
    yield (
        "one rank a core",
        (alone := _all(answer, [(free, shared), (four, [{0, 1}, {3}, {2, 3 * each + 1}])])),
    )

    # What a row has found wrong is not in it once more.
    cores = [1, each + 3, 2, each + 3 if alone.passed else each + 2]
    texts = [str(cores[0]), hex(cores[1]), hex(cores[2]), str(cores[3])]
    two = Machine((0, 1, 1, 1), blocks(2, each), reserved=frozenset({1}) if rights.passed else None)
    yield "maps", misplaced(answer, two, [{core} for core in cores], f"map_cpu:{','.join(texts)}")


def misplaced(answer: Answer, machine: Machine, cpus: Sequence[set[int]], option: str) -> Finding:
    """Passes if the answer finds each rank's wrong CPUs. cpus: those that the option gives to each rank."""
    seen = answer.call(call, f"--cpu-bind={option}", machine.data)
    return compare.equal(seen, machine.misplaced(cpus), f'"--cpu-bind={option}" on {machine.as_typed}')


def _all(answer: Answer, cases: Sequence[tuple[Machine, Sequence[set[int]]]]) -> Finding:
    """Passes if the answer is right for all of these, given as masks."""
    return compare.first_failure(
        misplaced(answer, machine, cpus, _masks([sum(1 << cpu for cpu in own) for own in cpus], number % 2))
        for number, (machine, cpus) in enumerate(cases)
    )


def _masks(masks: Sequence[int], plain: int = 0) -> str:
    """srun's option. plain: without 0x."""
    return f"mask_cpu:{','.join(f'{mask:x}' if plain else hex(mask) for mask in masks)}"


def _bits(mask: int) -> set[int]:
    return {bit for bit in range(mask.bit_length()) if mask >> bit & 1}


def _range(first: int, count: int) -> set[int]:
    return set(range(first, first + count))
