"""Unit 02, what `shard_indices` deals to the ranks when it is asked several times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.communication import calls_of
from graders.grading.kit import Answer, compare
from graders.units.unit_02.drivers import data as drivers


@dataclass(frozen=True, slots=True)
class Shards:
    """What shard_indices dealt to every rank, for each (length, epoch, seed) that was asked for.

    parts[i][r]: what rank r got for the i-th; again[i][r]: what it got when it asked once more for one of the
    first. changed[r]: the libraries whose random state changed on rank r.
    """

    asked: Sequence[tuple[int, int, int]]
    parts: list[list[Any]]
    again: list[list[Any]]
    changed: list[list[str]]
    calls: list[str]

    def indices(self, number: int) -> list[Tensor]:
        """Each rank's part [n]; empty where it is no list of indices, which `partition` reports."""
        return [part if is_index_list(part) else _NOTHING for part in self.parts[number]]

    def orders(self, *numbers: int) -> list[list[list[int]]]:
        """The same as lists, for some of what was asked for."""
        return [[part.tolist() for part in self.indices(number)] for number in numbers]


_NOTHING = torch.empty(0, dtype=torch.int64)


def is_index_list(part: Any) -> bool:
    """Whether it is a 1-D int64 tensor."""
    return type(part) is Tensor and part.dtype == torch.int64 and part.dim() == 1


def shards(answer: Answer, asked: Sequence[tuple[int, int, int]], ranks: int) -> Shards:
    """Let every rank, each on a node of its own, ask for its part for each (length, epoch, seed)."""
    given, cluster = map(list, zip(*asked, strict=True)), Cluster(nodes=ranks)
    observed = answer.launch(drivers.shards, *given, ranks=ranks, cluster=cluster)
    first = [[part for _, part in compare.side_by_side(asked, rank.first)] for rank in observed.results]
    once_more = asked[: drivers.AGAIN]
    again = [[part for _, part in compare.side_by_side(once_more, rank.again)] for rank in observed.results]
    return Shards(
        asked,
        parts=[list(parts) for parts in zip(*first, strict=True)],
        again=[list(parts) for parts in zip(*again, strict=True)],
        changed=[rank.changed for rank in observed.results],
        calls=calls_of([observed]),
    )
