"""Unit 03, the cores beside the GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from graders.grading.kit import Answer, AnswerFailed, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call
from graders.units.raised import raised_in
from graders.units.unit_03.topologies import (
    DGX_A100,
    GRACE_HOPPER,
    LUMI_G,
    NOTHING,
    WHOLE_LUMI_G,
    Machine,
    blocks,
    draw_plain,
    draw_reserved,
    draw_threads,
    in_turn,
    second_threads_left,
)


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "any machine",
            2,
            "The cores of a NUMA node are cut into one block for each of its GPUs, and a GPU's rank gets the "
            "first core of its block. What is left over stays at the end. Take all numbers from node.",
        ),
        Criterion(
            "allowed cores",
            2,
            "Which cores are reserved differs from site to site: keep those of the node that are "
            "allowed, then cut them into blocks.",
        ),
        Criterion(
            "hardware threads",
            2,
            "With two threads per core, half of a node's CPUs are no cores of their own but second threads; "
            "with four, three quarters are. Leave these out before you cut.",
        ),
        Criterion(
            "real machines",
            1,
            "On LUMI, GPU 0 is beside NUMA node 3. Its allowed cores are 49-55 and 57-63; two GPUs share "
            "them, so GPU 0 gets the first seven, GPU 1 the other seven. Where allowed is None, as on a "
            "Grace Hopper, the job may use all cores.",
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
    plain = [WHOLE_LUMI_G, *draw_plain(rng), replace(GRACE_HOPPER, reserved=NOTHING)]
    yield "any machine", (first := bindings(answer, plain))
    # What a row has found wrong is not in the rows after it.
    yield "allowed cores", (rights := bindings(answer, draw_reserved(rng, first.passed)))
    threads = [*draw_threads(rng, first.passed), DGX_A100, *[second_threads_left(rng)] * rights.passed]
    yield "hardware threads", bindings(answer, threads)
    yield "real machines", bindings(answer, [LUMI_G, GRACE_HOPPER, replace(DGX_A100, reserved=None)])


def bindings(answer: Answer, machines: Sequence[Machine]) -> Finding:
    """Passes if the answer finds the core of every GPU of each machine."""

    def one(machine: Machine) -> Finding:
        try:
            return binding(machine, answer.call(call, machine.data))
        except AnswerFailed as failure:
            return raised_in(f"The node {machine.as_typed}", failure)

    return compare.first_failure(map(one, machines))


def binding(machine: Machine, seen: object) -> Finding:
    """Passes if this is the core of every GPU; else it tells of the first GPU whose core is another one."""
    whole = compare.equal(seen, machine.expected, f"cores for {machine.as_typed}")
    if whole.passed or type(seen) is not list or len(seen) != len(machine.expected):
        return whole
    pairs = enumerate(zip(seen, machine.expected, strict=True))
    gpu = next(gpu for gpu, (got, wanted) in pairs if not compare.same(got, wanted))
    numa = machine.numa_of_gpu[gpu]
    told = machine.data
    cores = [cpu for cpu in told["cpus_of_numa"][numa] if cpu < machine.core_count]
    allowed = cores if told["allowed"] is None else [cpu for cpu in cores if cpu in told["allowed"]]
    sharing = [other for other, node in enumerate(machine.numa_of_gpu) if node == numa]
    got = compare.shown(seen[gpu])
    gpus = f"GPUs {', '.join(map(str, sharing))} share" if len(sharing) > 1 else f"GPU {gpu} has"
    return Finding(
        False,
        f"GPU {gpu} (NUMA node {numa}): expected core {machine.expected[gpu]}, got {got}. "
        f"{gpus} the cores {_in_ranges(allowed)} of {_in_ranges(cores)}, with "
        f"{compare.counted(machine.threads, 'hardware thread')} per core. "
        f"The node: {machine.as_typed}.",
    )


def _in_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as a text: "1-7,9"."""
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends, strict=True))


SLIDE = [0xFE << 4 * zeros for zeros in (12, 16, 4, 6, 0, 2, 8, 12)]
"""The lecture's masks, by the zeros behind fe; the second and the last are misprints of 14 and 10."""


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "masks",
            2,
            "Bit b of a mask stands for CPU b. The numbers are hexadecimal, with 0x or without: two of their "
            "digits are eight CPUs. The result has a list of CPUs for each rank.",
        ),
        Criterion(
            "beside the GPU",
            1,
            "Rank r has GPU r, and its CPUs are those of that GPU's NUMA node, whatever their numbers.",
        ),
        Criterion(
            "allowed",
            1,
            "A CPU beside the GPU may still not be the job's: look whether it is in `allowed` (None: all "
            "are).",
            needs=("masks", "beside the GPU"),
        ),
        Criterion(
            "one rank per core",
            1,
            "Two ranks must not share a core, not even on different threads: c and c + n are threads of one "
            "core (n cores). Then both ranks' CPUs of that core are misplaced; only the stray one's, if it "
            "comes from another NUMA node.",
            needs=("masks", "beside the GPU"),
        ),
        Criterion(
            "maps",
            1,
            "map_cpu names one CPU per rank: decimal, or with 0x hexadecimal. Where allowed is None, the job "
            "may use all CPUs.",
            needs=("masks", "beside the GPU"),
        ),
    ),
    hints=(
        "What has to be true of a CPU so that a rank may have it? Write one condition after the other.",
        "Which core is a CPU a thread of, if the node has n cores?",
        "What does int(text, 16) make of 0xfe, and of fe? And int(text, 0) of 0x10, and of 10?",
    ),
)
def misplaced_cpus(answer: Answer, rng: Rng) -> Findings:
    """Options for drawn machines of which some CPUs are wrong, and the lecture's slide."""
    each = 4 * rng.integer(2, 5)
    yield "masks", compare.first_failure(_as_masks(answer, rng, each))

    # Two GPUs more than there are ranks.
    plain = Machine((1, 1, 0, 0, 0), blocks(2, each), reserved=NOTHING)
    shifted = [_range(each - 1, 3), _range(each + 4, 2), _range(each - 3, 2) | _range(each + 2, 2)]
    numbered = Machine((1, 0), in_turn(2, each), reserved=NOTHING)
    yield "beside the GPU", _all(answer, [(plain, shifted), (numbered, [{0, 1, 3}, {2, 4, 5}])])

    job = Machine(
        (0, 1), blocks(2, each), threads=2, reserved=frozenset({0, each, *range(2 * each, 4 * each)})
    )
    # No rank has two threads of a core: whom that makes a difference to, another row tells.
    with_threads = [{0, 1, 2, 2 * each + 3}, {each + 1, 3 * each + 2, 3 * each + 3}]
    # The second option is for one rank alone.
    yield "allowed", (rights := _all(answer, [(job, with_threads), (job, [{1, 2, each}])]))

    # The job may not use the second thread of core 6; whoever runs there is in the way all the same.
    # The third NUMA node has no CPU, as where it is a GPU's memory.
    free = Machine((0, 0, 1), (*in_turn(2, each), ()), threads=2, reserved=frozenset({2 * each + 6}))
    shared = [{0, 2, 4, 2 * each + 6}, {4, 6, 2 * each}, {each + 1, 3 * each + 1}]
    four = Machine((0, 0, 0), blocks(1, each), threads=4, reserved=NOTHING)
    findings = (
        _all(answer, [(free, shared), (four, [{0, 1}, {3}, {2, 2 * each + 2, 3 * each + 1}])]),
        misplaced(answer, LUMI_G, [_bits(mask) for mask in SLIDE], _masks(SLIDE)),
    )
    yield "one rank per core", (alone := compare.first_failure(findings))
    yield "maps", compare.first_failure(_as_maps(answer, each, rights.passed, alone.passed))


def _as_maps(answer: Answer, each: int, rights: bool, alone: bool) -> Iterator[Finding]:
    """Maps, decimal and hexadecimal, on a node where one CPU is not the job's, and where all are.

    rights, alone: what another row has found wrong is not in this one once more.
    """
    cpus = [1, each + 3, 2, each + 3 if alone else each + 2]
    two = Machine((0, 1, 1, 1, 0), blocks(2, each), reserved=frozenset({1}) if rights else NOTHING)
    texts = [str(cpus[0]), hex(cpus[1]), hex(cpus[2]), str(cpus[3])]
    yield misplaced(answer, two, [{cpu} for cpu in cpus], f"map_cpu:{','.join(texts)}")
    # A rank that strays to another one's core; two threads of a core, one of them with a second stray.
    free = replace(two, threads=2, reserved=None)
    cpus = [1, each + 3, *([2 * each + 1, 3 * each + 3, 3 * each + 3] if alone else [2])]
    yield misplaced(answer, free, [{cpu} for cpu in cpus], f"map_cpu:{','.join(map(str, cpus))}")
    yield _all(answer, [(free, [{0, 2, *[2 * each] * alone}, {each - 1, each, *[3 * each] * alone}])])


def _as_masks(answer: Answer, rng: Rng, each: int) -> Iterator[Finding]:
    """Whether all bits of masks are read: of a machine like LUMI's, and of one with more CPUs than 64."""
    # Two ranks have each other's masks, so that no core has two; the job may use all CPUs that there are.
    fe = [0xFE << 4 * zeros for zeros in (12, 14, 4, 6, 0, 2, 8, 10)]
    one = rng.choice((0, 2))
    fe[one], fe[one + 3] = fe[one + 3], fe[one]
    masks = ",".join(f"{mask:x}" if rank % 2 else f"{mask:#x}" for rank, mask in enumerate(fe))
    yield misplaced(answer, WHOLE_LUMI_G, [_bits(mask) for mask in fe], f"mask_cpu:{masks}")
    wide = Machine((1, 0), blocks(2, 60 + each), reserved=NOTHING)
    # The last one the node does not have.
    yield _all(answer, [(wide, [{3, 66}, {64 + each, 330 + 2 * each}])])


def misplaced(answer: Answer, machine: Machine, cpus: Sequence[set[int]], option: str) -> Finding:
    """Passes if the answer finds each rank's wrong CPUs. cpus: those that the option gives to each rank."""
    where, expected = f'"--cpu-bind={option}" on {machine.as_typed}', machine.misplaced(cpus)
    try:
        seen = answer.call(call, f"--cpu-bind={option}", machine.data)
    except AnswerFailed as failure:
        return raised_in(where, failure)
    if type(seen) is list and len(seen) == len(expected):
        # All lists of a node are too many to compare by eye: the first that differs.
        for rank, (got, wanted) in enumerate(zip(seen, expected, strict=True)):
            if not compare.same(got, wanted):
                told = compare.equal(got, wanted, f"rank {rank}").seen
                given = "; ".join(f"rank {each} {_in_ranges(sorted(own))}" for each, own in enumerate(cpus))
                return Finding(False, f"{where}: {told} The ranks have the CPUs: {given}.")
    return compare.equal(seen, expected, where)


def _all(answer: Answer, cases: Sequence[tuple[Machine, Sequence[set[int]]]]) -> Finding:
    """Passes if the answer is right for all of these, given as masks."""
    return compare.first_failure(
        misplaced(answer, machine, cpus, _masks([sum(1 << cpu for cpu in own) for own in cpus], number % 2))
        for number, (machine, cpus) in enumerate(cases)
    )


def _masks(masks: Sequence[int], plain: int = 0) -> str:
    """srun's option. plain: without 0x."""
    return f"mask_cpu:{','.join(f'{mask:X}' if plain else hex(mask) for mask in masks)}"


def _bits(mask: int) -> set[int]:
    return {bit for bit in range(mask.bit_length()) if mask >> bit & 1}


def _range(first: int, count: int) -> set[int]:
    return set(range(first, first + count))
