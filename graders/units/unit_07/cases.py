"""The cases of unit 07's collectives: in what settings they are called, with what, and what they may cost."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.judging import feature
from graders.grading.kinds import Kind
from graders.grading.kit import Finding, Rng
from graders.units.ranks.features import Ranks, cluster_of

MOST_PLACES = 7
"""Digits that float32 holds exactly, and one rank has each."""
WHOSE = (
    "(In these numbers the last digit is rank 0's, the one before it rank 1's, and so on; each is 1 to 4.)"
)
EAGER = 4096
"""Bytes up to which a message does not wait for its receiver, if a rank is slow."""


@dataclass(frozen=True, slots=True)
class Setting(Ranks):
    """How a collective is called; by default in the ordinary way.

    each: elements for each rank, and length: elements in all, if that is not a multiple. shape: of the whole
    tensor, if it has not one dimension. node: ranks a node, where the answer is told of nodes. slow: rank 0
    computes slowly, and messages wait for nobody.
    """

    each: int = 16
    length: int | None = feature(None, lambda n: "" if n is None else f"{n} elements")
    shape: tuple[int, ...] | None = feature(None, lambda shape: "" if shape is None else f"shape {shape}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    node: int = feature(0, lambda node: f"{node} a node" if node else "")
    slow: bool = feature(False, lambda slow: "rank 0 slow" if slow else "")

    @property
    def whole(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        if self.shape is not None:
            return self.shape
        return (self.ranks * self.each if self.length is None else self.length,)

    @property
    def devices_per_node(self) -> int:
        return max(1, self.node)

    @property
    def alone(self) -> bool:
        # A hierarchy may make groups of some ranks, and all must have made equally many.
        return bool(self.slow or (self.node and self.group))

    @property
    def cluster(self) -> Cluster:
        if not self.slow:
            return cluster_of(self)
        machine = Cluster(devices_per_node=self.launched, memory_bandwidth=1e9, eager_limit=EAGER)
        return machine.with_straggler(0, slowdown=1000)

    @property
    def has_digits(self) -> bool:
        """Whether each rank's numbers have a decimal place of their own; see `numbers`."""
        return self.dtype is torch.float32 and self.ranks <= MOST_PLACES

    @property
    def tolerance(self) -> float:
        return 0.0  # All numbers are whole, and so are their sums.

    def explained(self, finding: Finding, seen: object, expected: object) -> Finding:
        """With what the digits of sums tell, see `numbers`."""
        if not self.has_digits or not isinstance(seen, Tensor) or not isinstance(expected, Tensor):
            return finding
        if missing := lacking(self, seen, expected):
            text = f"{finding.seen} {WHOSE} Rank {missing[0]}'s part is missing."
            return Finding(False, text, Kind.LACKS_A_RANK)
        return replace(finding, seen=f"{finding.seen} {WHOSE}")

    @property
    def chunks(self) -> list[int]:
        """How many elements each chunk of torch.tensor_split has."""
        return split(torch.Size(self.whole).numel(), self.ranks)

    @property
    def nbytes(self) -> int:
        return torch.Size(self.whole).numel() * self.dtype.itemsize

    @property
    def parts(self) -> list[int]:
        """Bytes of each of `parts`: as many rows as chunks have."""
        rows, *row = self.whole
        return [count * torch.Size(row).numel() * self.dtype.itemsize for count in split(rows, self.ranks)]


def split(items: int, ranks: int) -> list[int]:
    """How many of them each chunk of torch.tensor_split has."""
    return [items // ranks + (place < items % ranks) for place in range(ranks)]


def possible(setting: Setting) -> bool:
    """What excludes one another: a root beyond the ranks, and nodes that are not whole."""
    return setting.root < setting.ranks and (not setting.node or setting.ranks % setting.node == 0)


def drawn(rng: Rng, setting: Setting) -> Tensor:
    """A whole tensor. Integers are so large that no floating-point type holds them exactly; others are so
    small that bfloat16 holds their sums.
    """
    if setting.dtype.is_floating_point:
        return rng.integers(1, 9, *setting.whole).to(setting.dtype)
    return rng.integers(-(2**58), 2**58, *setting.whole)


def numbers(rng: Rng, setting: Setting) -> list[Tensor]:
    """One whole tensor a rank, in whose sums one can see the ranks: digits from 1 to 4 in a decimal place of
    its own, the last one for place 0. A 0 in a sum is a rank that is missing, a digit above 4 one that came
    twice. Where places do not suffice, as `drawn`.
    """
    if not setting.has_digits:
        return [drawn(rng, setting) for _ in range(setting.ranks)]
    shape = setting.whole
    return [rng.integers(1, 4, *shape).to(setting.dtype) * 10**place for place in range(setting.ranks)]


def parts(rng: Rng, setting: Setting, first: int) -> list[Tensor]:
    """One part for each rank: the chunks of the first dimension in turn, from number `first` on, so that
    their lengths are those of no `tensor_split`.
    """
    chunks = drawn(rng, setting).tensor_split(setting.ranks)
    return [chunks[(first + place) % setting.ranks] for place in range(setting.ranks)]


def left_over(part: Tensor) -> Tensor:
    """A tensor like this one, to be overwritten, with what happened to be in memory: NaN, if its dtype has
    that, else the same numbers the other way round.
    """
    return torch.full_like(part, torch.nan) if part.is_floating_point() else ~part


def total(tensors: list[Tensor]) -> Tensor:
    """The sum over ranks, of their dtype. Integers wrap round where they overflow, on every rank alike."""
    return torch.stack(tensors).sum(0, dtype=tensors[0].dtype)


def lacking(setting: Setting, seen: Tensor, expected: Tensor) -> list[int]:
    """Places whose digits are in every number of a sum, and not in all that were seen; see `numbers`."""
    if not setting.has_digits or seen.shape != expected.shape or not seen.isfinite().all():
        return []

    def digits(tensor: Tensor, place: int) -> Tensor:
        return tensor.double().div(10**place, rounding_mode="floor") % 10

    summed = [place for place in range(setting.ranks) if (digits(expected, place) != 0).all()]
    return [place for place in summed if (digits(seen, place) == 0).any()] if len(summed) > 1 else []
