"""The machine that a simulated run happens on: nodes, devices, network cards, and the links between them.

Times follow the Hockney model: a message of n bytes takes latency + n / bandwidth (R. Hockney, The
communication challenge for MPP: Intel Paragon and Meiko CS-2, Parallel Computing 20(3), 1994). How messages
share devices and cards is told in `course_lib.runtime.simulator.network_model`; clusters of real machines are
in `course_lib.cluster.presets`.
"""

from dataclasses import dataclass, field, replace
from math import isfinite

from course_lib.cluster.device import Device
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

    def seconds(self, nbytes: float) -> float:
        """Time for a message of `nbytes`: latency + nbytes / bandwidth."""
        return self.latency + nbytes / self.bandwidth


SHARED_MEMORY = Link(latency=1e-6, bandwidth=20e9)
"""A plausible link inside a node; the presets of real machines cite theirs."""

ETHERNET_100G = Link(latency=10e-6, bandwidth=12.5e9)
"""100 Gbit/s, which is 12.5e9 bytes a second."""


@dataclass(frozen=True, slots=True)
class Disturbances:
    """What is wrong with a cluster. `Cluster.with_straggler` and its sisters make it and say what it means.

    stragglers: (rank, slowdown). slow_links: (rank, rank, slowdown). slow_nodes: (node, slowdown).
    lost_ranks: (rank, seconds). jitter: mean of the random part of a message's time, relative to the time
    without it. seed: where its random numbers begin.
    """

    stragglers: tuple[tuple[int, float], ...] = ()
    slow_links: tuple[tuple[int, int, float], ...] = ()
    slow_nodes: tuple[tuple[int, float], ...] = ()
    lost_ranks: tuple[tuple[int, float], ...] = ()
    jitter: float = 0.0
    seed: int = 0


UNDISTURBED = Disturbances()


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` machines with `devices_per_node` devices each; rank r sits on node r // devices_per_node.

    intra_node, inter_node: what one message between two devices of a node, or of two nodes, has to itself.
    cards_per_node: network cards of a node, each with the bandwidth of `inter_node`, in and out; device d of
        a node uses card d * cards_per_node // devices_per_node, together with its neighbours. None: every
        device has a card of its own.
    eager_limit: a message of at most so many bytes is buffered, so its send returns at once; a longer one
        waits until the receiver has posted its receive (rendezvous), as Gloo and NCCL do for every message
        and MPI for long ones. The default, 0, buffers nothing: a program whose blocking sends need a buffer
        hangs here with messages of every length.
    flops: what a device computes, in FLOP/s; None: computing takes no virtual time.
    memory_bandwidth: what a device reads and writes, in bytes/s, for operations that are not matrix
        products; None: they take no virtual time.
    host: what copies between a device and its node's main memory have to themselves, in each direction; see
        `course_lib.training.host_memory`. None: they take no virtual time.
    device: a `Device` with more than these two rates, such as a host that queues operations; flops and
        memory_bandwidth are then its.
    disturbances: slow, lost and uneven parts, added by `with_straggler`, `with_slow_link`, `with_slow_node`,
        `with_lost_rank` and `with_jitter`. Each returns a new cluster; they add up:

            presets.lumi_g(nodes=4).with_straggler(3, slowdown=2).with_jitter(seed=1)

    Raises BadLaunch for numbers that make no cluster.
    """

    nodes: int = 1
    devices_per_node: int = 1
    intra_node: Link = SHARED_MEMORY
    inter_node: Link = ETHERNET_100G
    eager_limit: int = 0
    flops: float | None = None
    memory_bandwidth: float | None = None
    name: str = field(default="", compare=False)
    cards_per_node: int | None = None
    host: Link | None = None
    disturbances: Disturbances = UNDISTURBED
    device: Device | None = None

    def __post_init__(self) -> None:
        self._take_rates()
        if self.nodes < 1 or self.devices_per_node < 1:
            raise BadLaunch(
                f"A cluster needs at least one node and one device a node; "
                f"got nodes={self.nodes}, devices_per_node={self.devices_per_node}."
            )
        if self.cards_per_node is not None and not 1 <= self.cards_per_node <= self.devices_per_node:
            raise BadLaunch(
                f"A node of {self.devices_per_node} devices can have 1 to {self.devices_per_node} network "
                f"cards; got cards_per_node={self.cards_per_node}. If one device has several cards, "
                f"multiply the bandwidth of inter_node."
            )

    def _take_rates(self) -> None:
        """Those of the device, which nobody may give otherwise."""
        if self.device is None:
            return
        for name in ("flops", "memory_bandwidth"):
            own, its = getattr(self, name), getattr(self.device, name)
            if own not in (None, its):
                raise BadLaunch(f"The cluster's device has {name}={its}; the cluster was given {own}.")
            object.__setattr__(self, name, its)

    @property
    def computes(self) -> Device:
        """What computes for each rank."""
        return self.device or Device(self.flops, self.memory_bandwidth)

    @property
    def computing_takes_time(self) -> bool:
        """Whether an operation takes its device or its host any virtual time."""
        return (self.flops, self.memory_bandwidth, self.computes.dispatch_seconds) != (None, None, 0)

    @property
    def size(self) -> int:
        """How many ranks it holds, one a device."""
        return self.nodes * self.devices_per_node

    def node_of(self, rank: int) -> int:
        return rank // self.devices_per_node

    def local_rank(self, rank: int) -> int:
        return rank % self.devices_per_node

    @property
    def shares_cards(self) -> bool:
        """Whether several devices of a node use one network card."""
        return self.cards_per_node not in (None, self.devices_per_node)

    def card_of(self, rank: int) -> int:
        """The network card that a rank uses, counted over all nodes."""
        cards = self.cards_per_node or self.devices_per_node
        return self.node_of(rank) * cards + self.local_rank(rank) * cards // self.devices_per_node

    def with_straggler(self, rank: int, slowdown: float = 2.0) -> "Cluster":
        """The same with one device that computes `slowdown` times as long as the others.

        Raises BadLaunch if computing takes no time here at all.
        """
        self._check_rank(rank)
        _check_slowdown(slowdown)
        if not self.computing_takes_time:
            raise BadLaunch(
                "On this cluster computing takes no virtual time, so a straggler would change nothing. "
                "Give it flops and memory_bandwidth, or use one of course_lib.cluster.presets."
            )
        old = self.disturbances
        return self._disturbed(replace(old, stragglers=(*old.stragglers, (rank, slowdown))))

    def with_slow_link(self, first: int, second: int, slowdown: float = 10.0) -> "Cluster":
        """The same with a bad cable: messages between two ranks, both ways, take `slowdown` times as long."""
        self._check_rank(first)
        self._check_rank(second)
        _check_slowdown(slowdown)
        if first == second:
            raise BadLaunch(f"A link joins two ranks; got rank {first} twice.")
        old = self.disturbances
        return self._disturbed(replace(old, slow_links=(*old.slow_links, (first, second, slowdown))))

    def with_slow_node(self, node: int, slowdown: float = 10.0) -> "Cluster":
        """The same with a node whose messages to and from other nodes take `slowdown` times as long."""
        if not 0 <= node < self.nodes:
            raise BadLaunch(f"There is no node {node}: the nodes are 0 to {self.nodes - 1}.")
        _check_slowdown(slowdown)
        old = self.disturbances
        return self._disturbed(replace(old, slow_nodes=(*old.slow_nodes, (node, slowdown))))

    def with_lost_rank(self, rank: int, after: float = 0.0) -> "Cluster":
        """The same with a rank that from the virtual time `after` (seconds) on answers nothing.

        What is not over by then, for it and for those it speaks to, never ends. A run in which somebody waits
        for it ends with `RankLost`; if all others return, the run is as usual and `Run.lost` names it.
        """
        self._check_rank(rank)
        if not after >= 0:
            raise BadLaunch(f"A rank is lost at a virtual time of at least 0 s; got after={after}.")
        old = self.disturbances
        return self._disturbed(replace(old, lost_ranks=(*old.lost_ranks, (rank, after))))

    def with_jitter(self, seed: int, spread: float = 0.1) -> "Cluster":
        """The same with uneven times: each message, each collective takes a random part longer.

        The part is exponentially distributed with the mean `spread`: 0.1 makes messages a tenth longer on
        average, and one in 150 half as long again. The same seed gives the same times.
        """
        if not (spread >= 0 and isfinite(spread)):
            raise BadLaunch(f"The spread of jitter is at least 0; got {spread}.")
        return self._disturbed(replace(self.disturbances, jitter=spread, seed=seed))

    def _disturbed(self, disturbances: Disturbances) -> "Cluster":
        return replace(self, disturbances=disturbances)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise BadLaunch(f"There is no rank {rank} on this cluster: its ranks are 0 to {self.size - 1}.")


def _check_slowdown(slowdown: float) -> None:
    if not (slowdown >= 1 and isfinite(slowdown)):
        raise BadLaunch(
            f"A slowdown says how many times as long something takes; it is at least 1, got {slowdown}."
        )
