"""Places of a job's processes, and the environments in which launchers start them there.

Names and forms are those recorded on two nodes of a virtual cluster: srun and sbatch of Slurm 22.05, torchrun
of PyTorch 2.13, mpirun of Open MPI 4.1, and horovodrun of Horovod 0.28. Only what tells of ranks is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass

Environment = dict[str, str]


@dataclass(frozen=True, slots=True)
class Seat:
    """A process's place: its numbers among all processes, on its node, and its node's."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    nodes: int
    local_size: int

    @property
    def expected(self) -> dict[str, int]:
        """What an answer returns for it."""
        return {name: getattr(self, name) for name in ("rank", "local_rank", "node_rank", "world_size")}


def seats_in_blocks(nodes: int, per_node: int) -> list[Seat]:
    """Ranks that fill one node after another."""
    world = nodes * per_node
    return [Seat(rank, rank % per_node, rank // per_node, world, nodes, per_node) for rank in range(world)]


def seats_dealt(nodes: int, per_node: int) -> list[Seat]:
    """Ranks that are dealt to the nodes like cards, as by srun --distribution=cyclic."""
    world = nodes * per_node
    return [Seat(rank, rank // nodes, rank % nodes, world, nodes, per_node) for rank in range(world)]


def seats_of_uneven_nodes(per_node: int) -> list[Seat]:
    """Of each of two nodes the last rank, where the first has one more than the second; and the first rank of
    the second node, where that has one more.
    """
    world, local = 2 * per_node + 1, (per_node + 1, per_node)
    last = [Seat(sum(local[: n + 1]) - 1, local[n] - 1, n, world, 2, local[n]) for n in (0, 1)]
    return [*last, Seat(per_node, 0, 1, world, 2, per_node + 1)]


# Of the seat only the job's size counts here.
BATCH_SCRIPT = """
SLURM_JOB_NODELIST=node[1-{nodes}] SLURM_JOB_NUM_NODES={nodes} SLURM_LOCALID=0 SLURM_NNODES={nodes}
SLURM_NODEID=0 SLURM_NTASKS={world_size} SLURM_NTASKS_PER_NODE={local_size} SLURM_PROCID=0
SLURM_TASKS_PER_NODE={local_size}(x{nodes})
"""
# What srun adds or replaces for one task of a step. SLURM_STEPID is an old name, which is still set.
STEP = """
SLURM_LOCALID={local_rank} SLURM_NNODES={nodes} SLURM_NODEID={node_rank} SLURM_NTASKS={world_size}
SLURM_NTASKS_PER_NODE={local_size} SLURM_PROCID={rank} SLURM_STEPID=0 SLURM_STEP_ID=0
SLURM_STEP_NUM_NODES={nodes} SLURM_STEP_NUM_TASKS={world_size}
SLURM_STEP_TASKS_PER_NODE={local_size}(x{nodes}) SLURM_TASKS_PER_NODE={local_size}(x{nodes})
"""
TORCHRUN = """
GROUP_RANK={node_rank} GROUP_WORLD_SIZE={nodes} LOCAL_RANK={local_rank} LOCAL_WORLD_SIZE={local_size}
MASTER_ADDR=node1 MASTER_PORT=44061 RANK={rank} TORCHELASTIC_RESTART_COUNT=0 WORLD_SIZE={world_size}
"""
# With a slot to spare. Open MPI's NODE_RANK counts the processes of a node, not nodes.
MPIRUN = """
OMPI_COMM_WORLD_LOCAL_RANK={local_rank} OMPI_COMM_WORLD_LOCAL_SIZE={local_size}
OMPI_COMM_WORLD_NODE_RANK={local_rank} OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE={world_size}
OMPI_UNIVERSE_SIZE={slots} PMIX_RANK={rank}
"""
# With Gloo. "Cross" counts the processes of one local rank over the nodes.
HOROVODRUN = """
HOROVOD_CROSS_RANK={node_rank} HOROVOD_CROSS_SIZE={nodes} HOROVOD_LOCAL_RANK={local_rank}
HOROVOD_LOCAL_SIZE={local_size} HOROVOD_RANK={rank} HOROVOD_SIZE={world_size}
"""


def _filled(template: str, seat: Seat) -> Environment:
    """The variables with this place's numbers."""
    numbers = {name: getattr(seat, name) for name in Seat.__slots__} | {"slots": seat.world_size + 1}
    return dict(variable.split("=") for variable in template.format(**numbers).split())


def batch_script(seat: Seat) -> Environment:
    """The environment in which a batch script itself runs."""
    return _filled(BATCH_SCRIPT, seat)


def srun(seat: Seat) -> Environment:
    """srun, one task a rank."""
    return batch_script(seat) | _filled(STEP, seat)


def torchrun(seat: Seat) -> Environment:
    """torchrun, started by hand on each node."""
    return _filled(TORCHRUN, seat)


def torchrun_by_srun(seat: Seat) -> Environment:
    """srun starts one torchrun a node, torchrun the ranks. The agents number the nodes in an order of their
    own; here it is the reverse of Slurm's.
    """
    node = seat.nodes - 1 - seat.node_rank
    outer = _filled(STEP, Seat(node, 0, node, seat.nodes, seat.nodes, 1))
    return batch_script(seat) | outer | torchrun(seat)


def mpirun(seat: Seat) -> Environment:
    """mpirun of Open MPI."""
    return _filled(MPIRUN, seat)


def mpirun_in_a_job(seat: Seat) -> Environment:
    """mpirun in a Slurm job: it starts a daemon on each other node by srun, and that starts the ranks.

    There Slurm's variables describe the daemons' step: one task on each of these nodes. On the first node
    they are the batch script's.
    """
    node, others = seat.node_rank - 1, seat.nodes - 1
    daemon = _filled(STEP, Seat(node, 0, node, others, others, 1)) if seat.node_rank else {}
    return batch_script(seat) | daemon | mpirun(seat)


def horovodrun(seat: Seat) -> Environment:
    """horovodrun, started by hand."""
    return _filled(HOROVODRUN, seat)


EXPORTS = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "3"}
"""What a user may export: the meeting place, as unit 03's script does, and how many nodes there are."""

LAUNCHERS: dict[str, Callable[[Seat], Environment]] = {
    "under srun": srun,
    "under torchrun": torchrun,
    "under torchrun, which srun has started on each node": torchrun_by_srun,
    "under torchrun, which a batch script has started itself": lambda seat: (
        batch_script(seat) | torchrun(seat)
    ),
    "under mpirun": mpirun,
    "under mpirun in a Slurm job": mpirun_in_a_job,
    "under horovodrun": horovodrun,
    "under horovodrun in a Slurm job": lambda seat: batch_script(seat) | horovodrun(seat),
    "under horovodrun in a shell that srun has started": lambda seat: (
        batch_script(seat) | _filled(STEP, Seat(0, 0, 0, 1, 1, 1)) | horovodrun(seat)
    ),
    "without any launcher": lambda seat: {"PATH": "/usr/bin", "HOME": "/home/me"},
    "in a batch script itself, outside of srun": batch_script,
}
"""Who has started a process, in words."""
