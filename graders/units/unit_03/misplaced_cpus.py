"""The grader of `misplaced_cpus`."""

from dataclasses import dataclass

from graders.grading.cases import Values, both
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_03.topologies import LUMI_G, NOTHING, WHOLE_LUMI_G, Machine, as_typed, blocks, in_turn

SLIDE = tuple(0xFE << 4 * zeros for zeros in (12, 16, 4, 6, 0, 2, 8, 12))
"""The lecture's masks, by the zeros behind fe; the second and the last are misprints of 14 and 10."""
SWAPPED = tuple(0xFE << 4 * zeros for zeros in (4, 14, 12, 6, 0, 2, 8, 10))
"""The right ones, but that ranks 0 and 2 have each other's."""


@dataclass(frozen=True, slots=True)
class Option:
    """masks: of the CPUs of each rank. kind: how they are written."""

    machine: Machine = WHOLE_LUMI_G
    masks: tuple[int, ...] = feature(
        SWAPPED, lambda masks: f"ranks on the CPUs {', '.join(str(bits(mask)) for mask in masks)}"
    )
    kind: str = feature("with 0x", "{}")

    @property
    def written(self) -> str:
        """srun's option."""
        if self.kind.startswith("numbers"):
            cpus = [cpu for mask in self.masks for cpu in bits(mask)]
            some = hex if self.kind.endswith("with 0x") else str
            return f"--cpu-bind=map_cpu:{','.join(map(some, cpus))}"
        plain = self.kind == "without 0x"
        return "--cpu-bind=mask_cpu:" + ",".join(f"{mask:X}" if plain else hex(mask) for mask in self.masks)


def bits(mask: int) -> list[int]:
    """The CPUs of a mask."""
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def given(machine: Machine, *cpus: set[int], kind: str = "with 0x") -> tuple[Values, ...]:
    """Ranks with these CPUs."""
    return both(machine=machine, masks=tuple(sum(1 << cpu for cpu in own) for own in cpus), kind=kind)


EACH = 12
"""Cores of a NUMA node."""
# Two GPUs more than there are ranks.
PLAIN = Machine((1, 1, 0, 0, 0), blocks(2, EACH), reserved=NOTHING)
NUMBERED = Machine((1, 0), in_turn(2, EACH), reserved=NOTHING)
WIDE = Machine((1, 0), blocks(2, 72), reserved=NOTHING)
# The first core of each NUMA node and all second threads are the system's.
JOB = Machine((0, 1), blocks(2, EACH), threads=2, reserved=frozenset({0, EACH, *range(2 * EACH, 4 * EACH)}))
ALL = Machine((0, 1, 1, 1, 0), blocks(2, EACH), threads=2)
SHARED = Machine((0, 0, 1), in_turn(2, EACH), threads=2, reserved=NOTHING)

# The last CPU the node does not have.
MASKS = both(kind="without 0x") + given(WIDE, {3, 66}, {76, 378})
BESIDE = (
    *given(PLAIN, {11, 12, 13}, {16, 17}, {9, 10, 14, 15}),
    *given(NUMBERED, {0, 1, 3}, {2, 4, 5}, kind="without 0x"),
)
# No rank has two threads of a core: whom that makes a difference to, another row tells.
ALLOWED = (
    *given(JOB, {0, 1, 2, 2 * EACH + 3}, {EACH + 1, 3 * EACH + 2, 3 * EACH + 3}),
    *given(ALL, {0, 2, 2 * EACH + 3}, {EACH - 1, EACH, 3 * EACH + 1}),
)
ONE_A_CORE = (
    *given(SHARED, {0, 2, 4, 2 * EACH + 6}, {4, 6, 2 * EACH}, {EACH + 1, 3 * EACH + 1}),
    *both(machine=LUMI_G, masks=SLIDE, kind="without 0x"),
)
MAPS = (
    *given(PLAIN, {EACH + 1}, {EACH + 3}, {2}, kind="numbers"),
    *given(PLAIN, {EACH + 1}, {3}, {2}, {EACH + 4}, kind="numbers with 0x"),
)


@of_function(
    base=Option(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "masks",
            2,
            "Bit b of a mask stands for CPU b. The numbers are hexadecimal, with 0x or without: two of their "
            "digits are eight CPUs. The result has a list of CPUs for each rank.",
            vary=MASKS,
        ),
        Criterion(
            "beside the GPU",
            1,
            "Rank r has GPU r, and its CPUs are those of that GPU's NUMA node, whatever their numbers.",
            vary=BESIDE,
        ),
        Criterion(
            "allowed",
            1,
            "A CPU beside the GPU may still not be the job's: look whether it is in `allowed` (None: all "
            "are).",
            vary=ALLOWED,
            needs=("masks", "beside the GPU"),
        ),
        Criterion(
            "one rank per core",
            1,
            "Two ranks must not share a core, not even on different threads: c and c + n are threads of one "
            "core (n cores). Then both ranks' CPUs of that core are misplaced; only the stray one's, if it "
            "comes from another NUMA node.",
            vary=ONE_A_CORE,
            needs=("masks", "beside the GPU"),
        ),
        Criterion(
            "maps",
            1,
            "map_cpu names one CPU per rank: decimal, or with 0x hexadecimal.",
            vary=MAPS,
            needs=("masks", "beside the GPU"),
        ),
    ),
    hints=(
        "What has to be true of a CPU so that a rank may have it? Write one condition after the other.",
        "Which core is a CPU a thread of, if the node has n cores?",
        "What does int(text, 16) make of 0xfe, and of fe? And int(text, 0) of 0x10, and of 10?",
    ),
    arguments=lambda rng, option: [option.written, option.machine.data],
    written=lambda given: f"{given[0]!r}, {as_typed(given[1])}",
)
def misplaced_cpus(option: Option, given: Arguments) -> Expected:
    """Of each rank's CPUs those that it should not have."""
    cpus = [set(bits(mask)) for mask in option.masks]
    return Expected(option.machine.misplaced(cpus), {"option": given[0], "node": given[1]}, returned=None)
