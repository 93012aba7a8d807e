"""The cases of unit 07's collectives: in what settings they are called, with what, and what they may cost."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Rng

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}
"""How far a sum may be off, relative and absolute: it may be added up in any order."""
MOST_PLACES = 7
"""Digits that float32 holds exactly, and one rank has each."""
LAYOUTS = {"contiguous": "", "strided": "with gaps", "transposed": "transposed", "meta": "on the device meta"}
"""How tensors stand in memory, see the driver's LAYOUTS, and how that is told."""
SLOW_LINKS = 2
MACHINES = ("", "rank 0 slow, and messages that wait for nobody", "some links slow")


@dataclass(frozen=True, slots=True)
class Setting:
    """How a collective is called; by default in the ordinary way.

    ranks: of the calling group. each: elements for each rank, and length: elements in all, if that is not a
    multiple. shape: of the whole tensor, if it has not one dimension. layout: see the driver's LAYOUTS. root:
    its place in the group. group: 0 is the default group; 1 and 2 have a gap, and do not begin at rank 0.
    node: ranks a node, where the answer is told of nodes. machine: one of MACHINES. then: lengths and roots
    of calls that begin before this one is over.
    """

    ranks: int = feature(4, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    each: int = 16
    length: int | None = feature(None, lambda n: "" if n is None else f"{n} element{'s' * (n != 1)}")
    shape: tuple[int, ...] | None = feature(None, lambda shape: "" if shape is None else f"shape {shape}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    layout: str = feature("contiguous", LAYOUTS.__getitem__)
    root: int = feature(0, lambda root: f"root at place {root}" if root else "")
    group: int = feature(0, lambda group: "in a group of some ranks" if group else "")
    node: int = feature(0, lambda node: f"{node} a node" if node else "")
    machine: int = feature(0, MACHINES.__getitem__)
    then: tuple[tuple[int, int], ...] = feature((), lambda then: "the next call at once" if then else "")

    @property
    def whole(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        if self.shape is not None:
            return self.shape
        return (self.ranks * self.each if self.length is None else self.length,)

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
    def calls(self) -> list["Setting"]:
        """This call, and those that begin before it is over."""
        return [self, *(replace(self, length=length, root=root, then=()) for length, root in self.then)]

    @property
    def has_digits(self) -> bool:
        """Whether each rank's numbers have a decimal place of their own; see `numbers`."""
        return self.dtype is torch.float32 and self.ranks <= MOST_PLACES

    @property
    def tolerance(self) -> float:
        return 0.0 if self.has_digits else TOLERANCES.get(self.dtype, 0.0)

    @property
    def chunks(self) -> list[int]:
        """How many elements each chunk of torch.tensor_split has."""
        elements = torch.Size(self.whole).numel()
        return [elements // self.ranks + (place < elements % self.ranks) for place in range(self.ranks)]

    @property
    def nbytes(self) -> int:
        return torch.Size(self.whole).numel() * self.dtype.itemsize

    @property
    def parts(self) -> list[int]:
        """Bytes of each of `parts`: of numbers, or of as many rows as chunks have."""
        if not self.whole:
            return [self.dtype.itemsize] * self.ranks
        rows, *row = self.whole
        counts = [rows // self.ranks + (place < rows % self.ranks) for place in range(self.ranks)]
        return [count * torch.Size(row).numel() * self.dtype.itemsize for count in counts]


def possible(setting: Setting) -> bool:
    """What excludes one another: a root beyond the ranks, nodes that are not whole, and links of ranks that
    are not there.
    """
    return (
        all(call.root < setting.ranks for call in setting.calls)
        and (not setting.node or setting.ranks % setting.node == 0)
        and (setting.machine != SLOW_LINKS or setting.ranks >= 4)
    )


def drawn(rng: Rng, setting: Setting) -> Tensor:
    """A whole tensor. Integers are so large that no floating-point type holds them exactly; in types of 16
    bits they are so small that these hold their sums.
    """
    shape, dtype = setting.whole, setting.dtype
    if dtype in (torch.bfloat16, torch.float16):
        return rng.integers(1, 9, *shape).to(dtype)
    if dtype.is_floating_point:
        return rng.normal(*shape, dtype=dtype)
    most = 2 ** (8 * dtype.itemsize - 6)
    return rng.integers(-most, most, *shape).to(dtype)


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
    their lengths are those of no `tensor_split`; or numbers.
    """
    if setting.shape == ():
        return [drawn(rng, setting) for _ in range(setting.ranks)]
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
