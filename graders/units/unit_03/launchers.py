"""Environments as launchers make them, with a process's place put in.

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
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "node_rank": self.node_rank,
            "world_size": self.world_size,
        }


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


def batch_script(seat: Seat) -> Environment:
    """The environment in which a batch script itself runs; of the seat only the job's size counts."""
    nodes, per_node = seat.nodes, seat.local_size
    return {
        "SLURM_JOB_NODELIST": f"node[1-{nodes}]",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": str(nodes * per_node),
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_PROCID": "0",
        "SLURM_TASKS_PER_NODE": f"{per_node}(x{nodes})",
    }


def _step(rank: int, local_rank: int, node: int, ranks: int, nodes: int) -> Environment:
    """What srun adds or replaces for one task of a step."""
    return {
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": str(ranks),
        "SLURM_NTASKS_PER_NODE": str(ranks // nodes),
        "SLURM_PROCID": str(rank),
        # Its old name, which is still set.
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(ranks),
        "SLURM_STEP_TASKS_PER_NODE": f"{ranks // nodes}(x{nodes})",
        "SLURM_TASKS_PER_NODE": f"{ranks // nodes}(x{nodes})",
    }


def srun(seat: Seat) -> Environment:
    """srun, one task a rank."""
    return batch_script(seat) | _step(seat.rank, seat.local_rank, seat.node_rank, seat.world_size, seat.nodes)


def torchrun(seat: Seat) -> Environment:
    """torchrun, started by hand on each node."""
    return {
        "GROUP_RANK": str(seat.node_rank),
        "GROUP_WORLD_SIZE": str(seat.nodes),
        "LOCAL_RANK": str(seat.local_rank),
        "LOCAL_WORLD_SIZE": str(seat.local_size),
        "MASTER_ADDR": "node1",
        "MASTER_PORT": "44061",
        "RANK": str(seat.rank),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(seat.world_size),
    }


def torchrun_by_srun(seat: Seat) -> Environment:
    """srun starts one torchrun a node, torchrun the ranks. The agents number the nodes in an order of their
    own; here it is the reverse of Slurm's.
    """
    node = seat.nodes - 1 - seat.node_rank
    outer = _step(node, 0, node, seat.nodes, seat.nodes)
    return batch_script(seat) | outer | torchrun(seat)


def mpirun(seat: Seat) -> Environment:
    """mpirun of Open MPI, with a slot to spare. Its NODE_RANK counts the processes of a node, not nodes."""
    return {
        "OMPI_COMM_WORLD_LOCAL_RANK": str(seat.local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(seat.local_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(seat.local_rank),
        "OMPI_COMM_WORLD_RANK": str(seat.rank),
        "OMPI_COMM_WORLD_SIZE": str(seat.world_size),
        "OMPI_UNIVERSE_SIZE": str(seat.world_size + 1),
        "PMIX_RANK": str(seat.rank),
    }


def mpirun_in_a_job(seat: Seat) -> Environment:
    """mpirun in a Slurm job: it starts a daemon on each other node by srun, and that starts the ranks.

    There Slurm's variables describe the daemons' step: one task on each of these nodes. On the first node
    they are the batch script's.
    """
    others = seat.nodes - 1
    daemon = _step(seat.node_rank - 1, 0, seat.node_rank - 1, others, others) if seat.node_rank else {}
    return batch_script(seat) | daemon | mpirun(seat)


def horovodrun(seat: Seat) -> Environment:
    """horovodrun with Gloo. "Cross" counts the processes of one local rank over the nodes."""
    return {
        "HOROVOD_CROSS_RANK": str(seat.node_rank),
        "HOROVOD_CROSS_SIZE": str(seat.nodes),
        "HOROVOD_LOCAL_RANK": str(seat.local_rank),
        "HOROVOD_LOCAL_SIZE": str(seat.local_size),
        "HOROVOD_RANK": str(seat.rank),
        "HOROVOD_SIZE": str(seat.world_size),
    }


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
        batch_script(seat) | _step(0, 0, 0, 1, 1) | horovodrun(seat)
    ),
    "without any launcher": lambda seat: {"PATH": "/usr/bin", "HOME": "/home/me"},
    "in a batch script itself, outside of srun": batch_script,
}
"""Who has started a process, in words."""
