"""Places of a job's processes, as launchers give them out."""

from dataclasses import dataclass


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
