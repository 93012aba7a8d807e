"""The grader of `rank_from_environment`."""

import re
from dataclasses import dataclass

from graders.grading.cases import Values, both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.drivers import in_turn_alone
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.unit_03 import launchers
from graders.units.unit_03.launchers import LAUNCHERS, Seat

# More nodes than two, and each with more ranks than there are nodes, no multiple of them: no number is
# another one by chance.
NODES, EACH = 3, 5
BLOCKS = launchers.seats_in_blocks(NODES, EACH)
DEALT = launchers.seats_dealt(NODES, EACH)
SOME = (BLOCKS[0], BLOCKS[EACH + 1], BLOCKS[-1])
UNEVEN = tuple(launchers.seats_of_uneven_nodes(EACH))
NOT_STARTED = (
    "without any launcher",
    "in a batch script itself, outside of srun",
)


@dataclass(frozen=True, slots=True)
class Process:
    """launcher: who has started it. seat: its place. exports: whether a user exports such names."""

    launcher: str = feature("under srun", "a process {}")
    seat: Seat = BLOCKS[EACH + 1]
    exports: bool = feature(False, lambda on: "where MASTER_ADDR and others are exported" if on else "")


def under(*names: str, seats: tuple[Seat, ...] = SOME) -> tuple[Values, ...]:
    """Processes that these have started, at each of the seats."""
    return tuple(change for name in names for seat in seats for change in both(launcher=name, seat=seat))


def environment(rng: Rng, process: Process) -> Arguments:
    """As it was recorded. What a launcher sets comes after what a user has exported."""
    return [(launchers.EXPORTS if process.exports else {}) | LAUNCHERS[process.launcher](process.seat)]


def what_tells(given: Arguments) -> str:
    """Of an environment what is shown beside a wrong place."""
    return repr({name: value for name, value in given[0].items() if re.search("RANK|SIZE|ID|NTASKS", name)})


@of_function(
    base=Process(),
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "srun",
            1,
            "SLURM_PROCID, SLURM_LOCALID and SLURM_NODEID say where the task is, however the tasks were "
            "dealt out; SLURM_NTASKS says how many there are. They are texts: return whole numbers. "
            "MASTER_ADDR and WORLD_SIZE are torchrun's, and a script may export them too.",
            vary=vary(exports=(True,), seat=(SOME[0], SOME[-1], DEALT[1], DEALT[5])),
            how=kept,
        ),
        Criterion(
            "torchrun",
            1,
            "torchrun calls the node's number GROUP_RANK. Nodes may have different numbers of ranks.",
            vary=under("under torchrun", seats=SOME + UNEVEN),
        ),
        Criterion(
            "mpirun",
            1,
            "Open MPI does not number the nodes: OMPI_COMM_WORLD_NODE_RANK counts processes on a node. "
            "How many processes has a node, and which are on the first?",
            vary=under("under mpirun"),
        ),
        Criterion(
            "Horovod",
            1,
            'Horovod\'s "cross" rank counts along the processes of equal local rank: one per node. Nodes may '
            "have different numbers of ranks.",
            vary=under("under horovodrun", seats=SOME + UNEVEN),
        ),
        Criterion(
            "one launcher inside another",
            2,
            "Variables are inherited. The launcher that started this very process is the innermost one: "
            "ask for torchrun's, Horovod's and Open MPI's variables before you ask for Slurm's.",
            needs=("torchrun", "mpirun", "Horovod"),
            vary=under(
                "under torchrun, which srun has started on each node",
                "under torchrun, which a batch script has started itself",
                "under mpirun in a Slurm job",
                "under horovodrun in a Slurm job",
                "under horovodrun in a shell that srun has started",
            ),
        ),
        Criterion(
            "no launcher",
            1,
            "Without a launcher there is one process, rank 0 of 1. A batch script's shell is such a "
            "process: it has SLURM_PROCID=0 and SLURM_NTASKS, but no SLURM_STEP_ID, since no srun has "
            "started it.",
            vary=vary(launcher=NOT_STARTED) + both(launcher=NOT_STARTED[0], exports=True),
        ),
    ),
    hints=(
        "Which process has started this one, and which of the variables did that process set?",
        "Write a table: for each launcher the names of its four variables. Then look which launcher's are "
        "there.",
        'The answer is the first launcher whose rank variable is in env: `"RANK" in env`.',
        "Where ranks fill one node after another, the node's number is rank // local size.",
    ),
    arguments=environment,
    driver=in_turn_alone,
    written=what_tells,
)
def rank_from_environment(process: Process, given: Arguments) -> Expected:
    """The seat; a process that no launcher has started is rank 0 of 1."""
    seat = Seat(0, 0, 0, 1, 1, 1) if process.launcher in NOT_STARTED else process.seat
    return Expected(seat.expected, {"env": given[0]}, returned=None)
