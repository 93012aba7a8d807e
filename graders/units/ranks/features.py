"""Features of a call that ranks make, from which units make their own."""

from dataclasses import dataclass
from typing import Self

from course_lib.cluster.topology import Cluster
from graders.grading.exercise import Finding
from graders.grading.judging import feature
from graders.grading.traffic import LINK

LAYOUTS = {"contiguous": "", "strided": "with gaps", "transposed": "transposed", "meta": "on the device meta"}
"""How tensors stand in memory, see the driver's LAYOUTS, and how that is told."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """How ranks make a call; by default in the ordinary way.

    ranks: of the calling group. layout: of all tensors that are given. group: 0 is the default group, which
    the answer is told nothing of; 1 and 2 are groups with a gap that do not begin at rank 0. root: its place
    in the group, where there is one.
    """

    ranks: int = feature(4, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    layout: str = feature("contiguous", LAYOUTS.__getitem__)
    group: int = feature(0, lambda group: "in a group of some ranks" if group else "")
    root: int = feature(0, lambda root: f"root at place {root}" if root else "")

    @property
    def places(self) -> tuple[int, ...]:
        """The global rank of each place."""
        if not self.group:
            return tuple(range(self.ranks))
        first, gap = (1, 1) if self.group == 1 else (3, self.ranks - 1)
        return tuple(first + place + (place >= gap) for place in range(self.ranks))

    @property
    def launched(self) -> int:
        """How many ranks the launch has."""
        return max(8, self.ranks + 5) if self.group else self.ranks

    @property
    def calls(self) -> list[Self]:
        """This call, and those that begin before it is over."""
        return [self]

    @property
    def tolerance(self) -> float:
        """How far a result may be off, relative and absolute."""
        return 1e-5

    @property
    def devices_per_node(self) -> int:
        return 1

    @property
    def alone(self) -> bool:
        """Whether the case has a launch of its own; its messages and time are not looked at then."""
        return False

    @property
    def cluster(self) -> Cluster:
        return cluster_of(self)

    def explained(self, finding: Finding, seen: object, expected: object) -> Finding:
        """The finding about a result, with what can be told by these inputs."""
        return finding


def cluster_of(setting: Ranks) -> Cluster:
    """Links that are easy to read, and messages that wait for their receivers."""
    devices = setting.devices_per_node
    return Cluster(
        nodes=-(-setting.launched // devices),
        devices_per_node=devices,
        intra_node=LINK,
        inter_node=LINK,
        eager_limit=0,
    )
