"""Cycles of a negotiation: which names ranks request, and which these complete."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from course_lib.cluster.topology import Cluster, Link
from graders.grading.judging import feature
from graders.grading.kit import Rng
from graders.units.ranks.features import Ranks

FAR = Link(latency=0.1, bandwidth=1e6)
"""A link on which every round shows."""
QUIET: list[list[str]] = [[]] * 4
"""Cycles in which nobody requests anything."""

Cycles = list[list[list[str]]]
"""The names that a rank requests: of each training, before each cycle."""


@dataclass(frozen=True, slots=True)
class Training(Ranks):
    """course: what happens, see `requests`."""

    ranks: int = feature(3, "{} ranks")
    course: str = feature("", lambda course: course or "one step")

    @property
    def cluster(self) -> Cluster:
        return Cluster(devices_per_node=self.ranks, intra_node=FAR)

    def requests(self, rng: Rng) -> list[Cycles]:
        """Of each rank its requests."""
        others = self.ranks - 1
        names = [f"blocks.{number}.attention.projection.{rng.integer(100, 999)}" for number in range(40)]
        match self.course:
            case "two steps":
                steps = [_step(rng, names[:3], rank == others) for rank in range(self.ranks)]
                return [[step + step] for step in steps]
            case "quiet cycles":
                return [[[names, *QUIET, []]]] * others + [[[[], *QUIET, names]]]
            case "some in each cycle":
                some = [names[first : first + 5] for first in range(0, len(names), 5)]
                return [[some]] * others + [[[*[[]] * (len(some) - 1), names]]]
            case _:
                return [[_step(rng, names[:6], rank == others)] for rank in range(self.ranks)]


def _step(rng: Rng, names: Sequence[str], last: bool) -> list[list[str]]:
    """Names that a rank requests in three cycles, and then quiet ones: enough to answer them one by one.

    Whatever is drawn, the last rank has four of them in the third cycle, of which the others had one before
    all else. So some become complete together, after others that were requested later.
    """
    cycles: list[list[str]] = [[] for _ in range(3 + min(len(names) - 1, len(QUIET)))]
    for place in torch.randperm(len(names), generator=rng.generator).tolist():
        number = 2 if place < 4 and last else 0 if place == 0 else rng.integer(0, 1)
        cycles[number].append(names[place])
    return cycles


def completed(given: Sequence[Cycles]) -> list[set[str]]:
    """For each cycle of all trainings the names that it completes. given: of each rank."""
    found: list[set[str]] = []
    for of_training in zip(*given, strict=True):
        counts: Counter[str] = Counter()
        for requested in zip(*of_training, strict=True):
            counts.update(name for names in requested for name in names)
            found.append({name for name, count in counts.items() if count == len(given)})
            for name in found[-1]:
                del counts[name]
    return found
