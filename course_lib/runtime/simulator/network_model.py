"""When messages and collectives end on a cluster: the simulator's only rules of time, without data or ranks.

A message of n bytes takes latency + n / bandwidth (the Hockney model, see `course_lib.cluster.topology`). For
its n / bandwidth seconds it has the sender's way out and the receiver's way in to itself, and between nodes
also the way out of the sender's network card and the way into the receiver's. It starts as soon as all of
them are free for that long. So transfers that need the same card take turns: k of them that are ready at once
are through after the time of all their bytes, as they would be at a k-th of the bandwidth each. This is the
rule of LogGP and LogGOPSim (A. Alexandrov et al., LogGP, SPAA 1995, where G is the time a byte keeps the card
busy; T. Hoefler, T. Schneider, A. Lumsdaine, LogGOPSim, HPDC 2010). SimGrid shares bandwidth fairly instead
(max-min; P. Velho et al., On the validity of flow-level TCP network models, ACM TOMACS 23(4), 2013): the last
of k equal messages ends at the same time, the others with it and not before. So ranks that send through one
card again and again, all in step, are set apart here, and save up to a latency a message, since one's passes
while another's bytes do; `benchmarks/smpi.py` shows by how much. Taking turns has the advantage that an end,
once known, stays: whoever is told of it may go on.

What comes later may pass what waits, if it delays nothing: a message that is free to go does not stand behind
one whose receiver is busy, as network cards keep a queue for each receiver.

Messages that are ready at the same moment are served as their calls meet, rank after rank, and not as each
sender has called. Where all ranks send to all others at once this is a good order on a power of two of ranks;
on others it takes as long as on the next power of two.

A receive from anyone takes what was sent first. In Gloo and MPI it takes what is announced to the receiver
first: the same, where links are alike; where they are not, a near rank's message may win over an earlier one.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from course_lib.cluster.topology import UNDISTURBED, Cluster
from course_lib.runtime.communication.costs import rounds_of, seconds_of
from course_lib.runtime.simulator.link_reservation import LinkReservation

Key = TypeVar("Key", bound=Hashable)

NEVER = math.inf
"""The end of what a lost rank keeps from ending."""


class LinkUse(NamedTuple):
    """A way (see `course_lib.runtime.simulator.link_reservation`), and for how long a byte keeps it busy."""

    number: int
    seconds_a_byte: float


class Route(NamedTuple):
    """How a message goes from one rank to another: what it passes, and the latency in seconds."""

    ways: tuple[LinkUse, ...]
    latency: float

    def seconds(self, nbytes: float) -> float:
        """The time of a message that waits for nobody."""
        return self.latency + nbytes * max(way.seconds_a_byte for way in self.ways)


class _RoundCost(NamedTuple):
    """A round's time for n bytes: the longest latency + n * seconds_a_byte of `messages`, `times` times."""

    messages: tuple[tuple[float, float], ...]
    times: int


class _CollectiveCost(NamedTuple):
    """What an operation of certain members takes, and for how many seconds a byte it keeps each card busy."""

    rounds: tuple[_RoundCost, ...]
    cards: tuple[LinkUse, ...]

    def seconds(self, nbytes: float) -> float:
        return sum(
            each.times * max(latency + nbytes * a_byte for latency, a_byte in each.messages)
            for each in self.rounds
        )


class Timing:
    """The time rules of one run of `ranks` ranks on `cluster`, and what is busy until when.

    Ask in the order of virtual time. Ends are seconds of virtual time, and final; NEVER if a lost rank takes
    part that is gone by then.
    """

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        self._cluster = cluster
        self._ranks = ranks
        self._node = [cluster.node_of(rank) for rank in range(ranks)]
        self._intra_node, self._inter_node = cluster.intra_node, cluster.inter_node
        disturbances = cluster.disturbances
        self.plain = not cluster.shares_cards and disturbances == UNDISTURBED
        """Whether messages share nothing but ranks' ways, and take what bytes and nodes say."""
        # Out of rank r goes way r, into it way ranks + r; cards and bad cables get theirs when they are met.
        self._links = LinkReservation(2 * ranks)
        self._routes: dict[tuple[int, int], Route] = {}
        self._costs: dict[tuple[str, tuple[int, ...], int], _CollectiveCost] = {}
        both_ways = (
            (pair, slowdown)
            for first, second, slowdown in disturbances.slow_links
            for pair in ((first, second), (second, first))
        )
        self._stragglers = _each(max, disturbances.stragglers)
        self._slow_nodes = _each(max, disturbances.slow_nodes)
        self._slow_links = _each(max, both_ways)
        self._lost = _each(min, disturbances.lost_ranks)
        self._random: dict[tuple[object, ...], random.Random] = {}

    def message(self, source: int, target: int, nbytes: int, ready: float) -> float:
        """When a message that may leave at `ready` has arrived. source, target: global ranks."""
        if not self.plain:
            return self._message_with_all(source, target, nbytes, ready)
        link = self._intra_node if self._node[source] == self._node[target] else self._inter_node
        seconds = nbytes / link.bandwidth
        free, into = self._links.free, self._ranks + target
        if free[source] <= ready and free[into] <= ready:
            free[source] = free[into] = end = ready + seconds
            return end + link.latency
        return self._links.take(((source, seconds), (into, seconds)), ready) + seconds + link.latency

    def collective(
        self, operation: str, nbytes: int, members: tuple[int, ...], ready: float, root: int | None = None
    ) -> float:
        """When a collective whose last member has come at `ready` is over, for all members at once.

        operation, nbytes: as in `course_lib.runtime.communication.costs`. members: global ranks, in the order
        of the group. root: a global rank. It has its members' ways to itself, as on one NCCL stream: several
        at once take as long as one after another. Cards it shares, for as long as its bytes keep them busy.
        """
        cards: Sequence[tuple[int, float]] = ()
        if self.plain and self._alike(members):
            one_node = self._node[members[0]] == self._node[members[-1]]
            link = self._intra_node if one_node else self._inter_node
            seconds = seconds_of(operation, nbytes, len(members), link)
        else:
            cost = self._cost(operation, members, members[0] if root is None else root)
            stretch = self._stretch(operation, members)
            seconds = cost.seconds(nbytes) * stretch
            cards = [(way.number, way.seconds_a_byte * nbytes * stretch) for way in cost.cards]
        free, shift = self._links.free, self._ranks
        start = max(ready, *(max(free[rank], free[shift + rank]) for rank in members))
        if cards:
            start = self._links.take(cards, start)
        end = start + seconds
        for rank in members:
            free[rank] = free[shift + rank] = end
        return NEVER if end > self.lost_at(*members) else end

    def compute(self, rank: int, seconds: float) -> float:
        """The time that `rank` takes for what takes the others `seconds`."""
        return seconds * self._stragglers.get(rank, 1.0)

    def lost_at(self, *ranks: int) -> float:
        """When the first of these ranks is lost; NEVER if all stay."""
        return min((self._lost.get(rank, NEVER) for rank in ranks), default=NEVER) if self._lost else NEVER

    # --- Clusters with shared cards or disturbances

    def _message_with_all(self, source: int, target: int, nbytes: int, ready: float) -> float:
        route, stretch = self._route(source, target), self._stretch(source, target)
        ways = [(way.number, way.seconds_a_byte * nbytes * stretch) for way in route.ways]
        end = self._links.take(ways, ready) + route.seconds(nbytes) * stretch
        return NEVER if end > self.lost_at(source, target) else end

    def _route(self, source: int, target: int) -> Route:
        """What a message between two ranks passes. A slow node is slow on its own side only."""
        if (source, target) not in self._routes:
            self._routes[source, target] = self._make_route(source, target)
        return self._routes[source, target]

    def _make_route(self, source: int, target: int) -> Route:
        within = self._node[source] == self._node[target]
        link = self._intra_node if within else self._inter_node
        a_byte = 1 / link.bandwidth
        out, into = (1.0, 1.0) if within else (self._node_slowdown(source), self._node_slowdown(target))
        ways = [LinkUse(source, a_byte * out), LinkUse(self._ranks + target, a_byte * into)]
        if not within and self._cluster.shares_cards:
            ways.append(LinkUse(self._links.named("out", self._cluster.card_of(source)), a_byte * out))
            ways.append(LinkUse(self._links.named("in", self._cluster.card_of(target)), a_byte * into))
        cable = self._slow_links.get((source, target), 1.0)
        if cable > 1:
            ways.append(LinkUse(self._links.named("cable", source, target), a_byte * max(cable, out, into)))
        return Route(tuple(ways), link.latency * max(cable, out, into))

    def _node_slowdown(self, rank: int) -> float:
        return self._slow_nodes.get(self._node[rank], 1.0)

    def _stretch(self, *key: object) -> float:
        """How many times as long the next message or collective with this key takes, by jitter."""
        disturbances = self._cluster.disturbances
        if not disturbances.jitter:
            return 1.0
        if key not in self._random:
            # A stream of its own for each pair, so that what others send does not change its numbers.
            self._random[key] = random.Random(f"{disturbances.seed} {key}")
        return 1.0 + self._random[key].expovariate(1 / disturbances.jitter)

    # --- Collectives over links that differ

    def _alike(self, members: Sequence[int]) -> bool:
        """Whether all members sit on one node, or each on another."""
        return len({self._node[rank] for rank in members}) in (1, len(members))

    def _cost(self, operation: str, members: tuple[int, ...], root: int) -> _CollectiveCost:
        key = (operation, members, root)
        if key not in self._costs:
            self._costs[key] = self._make_cost(operation, members, members.index(root))
        return self._costs[key]

    def _make_cost(self, operation: str, members: tuple[int, ...], root: int) -> _CollectiveCost:
        """The operation's messages, each on its route; in a round, those on one way wait for each other."""
        in_order = members[root:] + members[:root]
        rounds = []
        cards: defaultdict[int, float] = defaultdict(float)
        for messages, share, times in rounds_of(operation, len(members)):
            if not times:
                continue
            routes = [self._route(in_order[source], in_order[target]) for source, target in messages]
            load: defaultdict[int, float] = defaultdict(float)
            for way in (way for route in routes for way in route.ways):
                load[way.number] += way.seconds_a_byte * share
            for number, a_byte in load.items():
                if number >= 2 * self._ranks and a_byte:
                    cards[number] += a_byte * times
            costs = {(route.latency, max(load[way.number] for way in route.ways)) for route in routes}
            rounds.append(_RoundCost(tuple(_undominated(costs)), times))
        return _CollectiveCost(tuple(rounds), tuple(LinkUse(*card) for card in sorted(cards.items())))


def _each(choose: Callable[[float, float], float], pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Each key with one of the numbers that are given for it."""
    chosen: dict[Key, float] = {}
    for key, number in pairs:
        chosen[key] = choose(number, chosen.get(key, number))
    return chosen


def _undominated(costs: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Pairs (latency, seconds a byte) that for some number of bytes take the longest."""
    most = -math.inf
    for latency, a_byte in sorted(costs, reverse=True):
        if a_byte > most:
            most = a_byte
            yield latency, a_byte
