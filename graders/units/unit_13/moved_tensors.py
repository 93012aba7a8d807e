"""Tensors in one layout and in another: what the grader of `reshard` draws, and what it makes of results."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.groups import members_of
from graders.units.unit_13.drivers import layouts as drivers

Change = tuple[str, str]
"""From one placement to another, as `spelled`."""

FIRST = {2: torch.int64, 3: torch.float64, 16: torch.bfloat16, 32: torch.float32, 64: torch.complex64}
"""What all changes are tried with on so many ranks: integers above 2**53, floats with all their digits. And
dtypes of so many bits that it is tempting to add up with more.
"""
OTHERS = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.float64, torch.bool)
LARGE = 2**59
"""Four of them add up to less than an int64 holds, and no float has as many digits."""


@dataclass(frozen=True, slots=True)
class World:
    """Changes of layouts, of which each group of ranks has a tensor of its own.

    parts[rank][k]: what a rank is given for change k. after[rank][k]: what it should have then; of a sum, the
    whole of it. Tensors have one to four dimensions.
    """

    changes: list[Change]
    parts: list[list[Tensor]]
    after: list[list[Tensor]]
    gaps: bool
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        changes: list[Change],
        ranks: int,
        gaps: bool = False,
        groups: list[list[int]] | None = None,
        first: int = 0,
    ) -> "World":
        """What is cut has a multiple of the ranks as its length. A change that comes again has a tensor of
        the same shape and dtype. first: which of FIRST the dtypes are, if there is one.
        """
        teams = groups or [list(range(ranks))]
        parts: list[list[Tensor]] = [[] for _ in range(ranks)]
        after: list[list[Tensor]] = [[] for _ in range(ranks)]
        more = cycle(range(rng.integer(0, 3), 100))
        kinds = {
            each: (_shape(rng, each, next(more), len(teams[0])), _dtype(rng, each, first)) for each in changes
        }
        for change in changes:
            for team in teams:
                given, wanted = _tensors(rng, change, *kinds[change], len(team))
                for place, rank in enumerate(team):
                    parts[rank].append(given[place])
                    after[rank].append(wanted[place])
        return cls(changes, parts, after, gaps, groups or [])

    def launch(self, answer: Answer) -> Observed[drivers.MovedReply]:
        """What each rank returned, and what it took."""
        given = per_rank(self.parts), self.changes, self.gaps, self.groups
        run = answer.launch(drivers.moved, *given, ranks=len(self.parts))
        for reply in run.results:
            for part in (reply.results, reply.left, reply.memory):
                list(compare.side_by_side(part, self.changes))
        return run

    def right(self, replies: list[drivers.MovedReply]) -> Finding:
        """Passes if every rank has what it should have."""
        return compare.first_failure(self._judged(replies))

    def _judged(self, replies: list[drivers.MovedReply]) -> Iterator[Finding]:
        ranks = len(self.parts)
        for k, (source, target) in enumerate(self.changes):
            for rank in range(ranks):
                what = f"{source} to {target}, {self._given(rank, k)}: the result on rank {rank} of {ranks}"
                seen, wanted = replies[rank].results[k], self.after[rank][k]
                if target == "P" and source != "P":
                    every = [replies[each].results[k] for each in members_of(rank, ranks, self.groups)]
                    other = next((each for each in every if not _is_alike(each, wanted)), None)
                    seen, what = (
                        (_sum(every), f"{what}, added up over its group,") if other is None else (other, what)
                    )
                if source == target:
                    wanted = self.parts[rank][k]
                yield _close(seen, wanted, what, exact=source == target or "P" not in (source, target))

    def _given(self, rank: int, k: int) -> str:
        part = self.parts[rank][k]
        given = f"a rank has {str(part.dtype).removeprefix('torch.')}{list(part.shape)}"
        return given + (f", groups {self.groups}" if self.groups else "")

    def left_alone(self, replies: list[drivers.MovedReply]) -> Finding:
        """Passes if no argument has changed, and each result has memory of its own."""
        for rank, reply in enumerate(replies):
            for k, (source, target) in enumerate(self.changes):
                what = f"{source} to {target}: x on rank {rank} afterwards"
                finding = _close(reply.left[k], self.parts[rank][k], what, exact=True)
                if not finding.passed:
                    return finding
                if reply.memory[k]:
                    return Finding(False, f"{source} to {target}: the result has {reply.memory[k]}.")
        return Finding(True, "No argument has changed, and each result has memory of its own.")


def _shape(rng: Rng, change: Change, more: int, p: int) -> tuple[int, ...]:
    """Of a whole tensor with as many dimensions as it needs, or some more, up to four."""
    cut = {int(each[2]) for each in change if each.startswith("S")}
    least = max(cut, default=0) + 1
    dims = least + more % (5 - least)
    return tuple((p if dim in cut else 1) * rng.integer(1, 4) for dim in range(dims))


def _dtype(rng: Rng, change: Change, first: int) -> torch.dtype:
    """One of those that can be added up, where there is a sum."""
    if first in FIRST:
        return FIRST[first]
    return rng.choice(OTHERS[:-1] if "P" in change else OTHERS)


def _numbers(rng: Rng, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """With as many digits as they can have; those of bfloat16 are such that four add up without rounding."""
    if dtype is torch.bool:
        return rng.integers(0, 1, *shape).bool()
    if dtype is torch.int64:
        return rng.integers(-LARGE, LARGE, *shape)
    return (
        rng.integers(-60, 60, *shape).to(dtype)
        if dtype is torch.bfloat16
        else rng.normal(*shape, dtype=dtype)
    )


def _tensors(
    rng: Rng, change: Change, shape: tuple[int, ...], dtype: torch.dtype, p: int
) -> tuple[list[Tensor], list[Tensor]]:
    """What each of p ranks is given, and what it should have then. Of several floats one is inf, one NaN."""
    source, target = change
    summands = [_numbers(rng, dtype, shape) for _ in range(p)]
    odd = (rng.choice(summands) if source == "P" else summands[0]).view(-1)
    if dtype.is_floating_point and len(odd) > 1:
        # Not the first: where no number is finite, a sum over too many ranks may look right.
        odd[rng.integer(1, len(odd) - 1)] = torch.nan
        odd[rng.integer(1, len(odd) - 1)] = rng.choice((torch.inf, -torch.inf))
    whole = _sum(summands) if source == "P" else summands[0]
    given = summands if source == "P" else [_part(whole, source, p, place) for place in range(p)]
    return given, [_part(whole, target, p, place) for place in range(p)]


def _part(whole: Tensor, layout: str, p: int, place: int) -> Tensor:
    """What a rank has of it, where a sum counts as whole."""
    return whole.tensor_split(p, int(layout[2]))[place].contiguous() if layout.startswith("S") else whole


def _sum(summands: list[Tensor]) -> Tensor:
    """Of their dtype."""
    return torch.stack(summands).sum(0, dtype=summands[0].dtype)


def _is_alike(seen: object, wanted: Tensor) -> bool:
    """Whether it is a tensor of this shape and dtype."""
    return type(seen) is Tensor and (seen.shape, seen.dtype) == (wanted.shape, wanted.dtype)


def _close(seen: object, wanted: Tensor, what: str, exact: bool) -> Finding:
    """`compare.close`, for which NaN is right where it is expected. exact: to the last bit; else sums may
    have been added up in another order.
    """
    if isinstance(seen, Tensor) and _is_alike(seen, wanted):
        both = seen.isnan() & wanted.isnan()
        seen, wanted = seen.masked_fill(both, 0), wanted.masked_fill(both, 0)
    rounds = wanted.is_floating_point() or wanted.is_complex()
    few = 0.0 if exact or not rounds else 16 * torch.finfo(wanted.dtype).eps
    return compare.close(seen, wanted, what, few, few)
