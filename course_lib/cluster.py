"""The machine that a simulated run happens on: nodes, devices, and the links between them.

Times follow the Hockney model: a message of n bytes takes latency + n / bandwidth (R. Hockney, The
communication challenge for MPP: Intel Paragon and Meiko CS-2, Parallel Computing 20(3), 1994).
"""

from dataclasses import dataclass, field

from course_lib.errors import BadLaunch


@dataclass(frozen=True, slots=True)
class Link:
    """A way from one device to another.

    latency: seconds until the first byte arrives (alpha). bandwidth: bytes a second after that (1 / beta).
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if self.latency < 0 or self.bandwidth <= 0:
            raise BadLaunch(
                f"A link needs a latency of at least 0 s and a bandwidth above 0 B/s; "
                f"got {self.latency} s and {self.bandwidth} B/s."
            )

    def seconds(self, nbytes: int) -> float:
        """Time for a message of `nbytes`: latency + nbytes / bandwidth."""
        return self.latency + nbytes / self.bandwidth


SHARED_MEMORY = Link(latency=1e-6, bandwidth=20e9)
"""A plausible link inside a node; the presets of real machines cite theirs."""

ETHERNET_100G = Link(latency=10e-6, bandwidth=12.5e9)
"""100 Gbit/s, which is 12.5e9 bytes a second."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` machines with `devices_per_node` devices each; rank r sits on node r // devices_per_node.

    eager_limit: a message of at most so many bytes is buffered, so its send returns at once; a longer one
        waits until the receiver has posted its receive (rendezvous), as Gloo and NCCL do for every message
        and MPI for long ones. The default, 0, is the strictest: a program that passes here hangs nowhere.
    flops: what a device computes, in FLOP/s; None: computing takes no virtual time.
    memory_bandwidth: what a device reads and writes, in bytes/s, for operations that are not matrix
        products; None: they take no virtual time.
    """

    nodes: int = 1
    devices_per_node: int = 1
    intra_node: Link = SHARED_MEMORY
    inter_node: Link = ETHERNET_100G
    eager_limit: int = 0
    flops: float | None = None
    memory_bandwidth: float | None = None
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.devices_per_node < 1:
            raise BadLaunch(
                f"A cluster needs at least one node and one device a node; "
                f"got nodes={self.nodes}, devices_per_node={self.devices_per_node}."
            )

    @property
    def size(self) -> int:
        """How many ranks it holds, one a device."""
        return self.nodes * self.devices_per_node

    def node_of(self, rank: int) -> int:
        return rank // self.devices_per_node

    def local_rank(self, rank: int) -> int:
        return rank % self.devices_per_node

    def slowest_link(self, ranks: tuple[int, ...]) -> Link:
        """The link that bounds a collective over `ranks`: between nodes as soon as there are two."""
        nodes = {self.node_of(rank) for rank in ranks}
        return self.intra_node if len(nodes) == 1 else self.inter_node
