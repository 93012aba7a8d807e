"""The grader of `reshard`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from course_lib.runtime.communication.costs import traffic_of
from graders.grading.called import Called
from graders.grading.cases import both, vary
from graders.grading.expected import Expected, same
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, OnRanks, Seen, on_ranks
from graders.units.unit_13.drivers import layouts as drivers
from graders.units.unit_13.reshard_cost import call_of

WHOLE = (("S(1)", "R"), ("S(2)", "R"), ("P", "R"))
CUT = (("P", "S(0)"), ("P", "S(1)"), ("S(0)", "S(1)"), ("S(2)", "S(1)"), ("S(0)", "S(2)"))
ALONE = (("R", "S(0)"), ("R", "S(1)"), ("R", "P"), ("S(0)", "P"), ("S(2)", "P"), ("R", "R"), ("P", "P"))
LARGE = 2**59
"""Four of them add up to less than an int64 holds, and no float has as many digits."""


@dataclass(frozen=True, slots=True)
class Moved(Ranks):
    """A tensor's change from one placement to another, as `spelled`."""

    change: tuple[str, str] = feature(("S(0)", "R"), " to ".join)
    dims: int = feature(3, "{} dimensions")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))

    @property
    def tolerance(self) -> float:
        """None where nothing is rounded; a sum may be added up in any order."""
        rounds = "P" in self.change and self.dtype.is_floating_point
        return 16 * torch.finfo(self.dtype).eps if rounds else 0.0

    @property
    def cut(self) -> set[int]:
        """The dimensions that are cut before or afterwards."""
        return {int(each[2]) for each in self.change if each.startswith("S")}

    @property
    def shape(self) -> list[int]:
        """Of the whole tensor; each dimension has another length."""
        return [(dim + 2) * (self.ranks if dim in self.cut else 1) for dim in range(self.dims)]


def parts(rng: Rng, case: Moved) -> list[Arguments]:
    """What each place has in the source's layout."""
    if case.change[0] == "P":
        given = [_numbers(rng, case) for _ in range(case.ranks)]
    else:
        whole = _numbers(rng, case)
        given = [part(whole, case.change[0], case.ranks, place) for place in range(case.ranks)]
    return [[each.contiguous(), *case.change] for each in given]


def _numbers(rng: Rng, case: Moved) -> Tensor:
    """With as many digits as they can have; those of bfloat16 are such that they add up without rounding."""
    if case.dtype.is_floating_point and case.dtype is not torch.bfloat16:
        return rng.normal(*case.shape, dtype=case.dtype)
    most = 60 if case.dtype.is_floating_point else LARGE
    return rng.integers(-most, most, *case.shape).to(case.dtype)


def part(whole: Tensor, layout: str, ranks: int, place: int) -> Tensor:
    """What a place has of it, where a sum counts as whole."""
    return whole.tensor_split(ranks, int(layout[2]))[place] if layout.startswith("S") else whole


class Summed(OnRanks[Moved]):
    """Where what comes out is to be a sum, any summands will do."""

    def _judged(
        self, setting: Moved, given: list[Arguments], told: Sequence[Called]
    ) -> tuple[Finding, Finding]:
        found, after = super()._judged(setting, given, told)
        source, target = setting.change
        if target != "P" or source == "P":
            return found, after
        whole = self.expected(setting, given)[0].result
        for place, called in enumerate(told):
            value = called.value
            if type(value) is not Tensor or (value.shape, value.dtype) != (whole.shape, whole.dtype):
                return same(value, whole, f"what place {place} returned", setting.tolerance), after
        total = _sum([called.value for called in told])
        return same(total, whole, "the sum of what all places returned", setting.tolerance), after


def _sum(summands: list[Tensor]) -> Tensor:
    """Of their dtype."""
    return torch.stack(summands).sum(0, dtype=summands[0].dtype)


def as_few_bytes(tried: Tried[Moved]) -> Finding:
    """Passes if no place calls more than one collective, or sends more bytes than the right one does."""
    case, seen = tried.case.features, tried.seen
    assert isinstance(seen, Seen)
    call = call_of(case.change)
    nbytes = prod(case.shape) * case.dtype.itemsize // (case.ranks if case.change[0][0] == "S" else 1)
    allowed = traffic_of(call, nbytes, case.ranks).sent if call else 0
    for place, events in enumerate(seen.by_rank):
        sent = sum(event.sent for event in events)
        said = f"place {place} makes {compare.counted(len(events), 'call')} and sends {sent:,} bytes"
        if len(events) > bool(call) or sent > allowed:
            return Finding(False, f"{said}; allowed are {int(bool(call))} and {allowed:,}.", Kind.TOO_MUCH)
    return Finding(True, f"{said}; no more is allowed.")


@on_ranks(
    base=Moved(),
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "whole on every rank",
            3,
            "Of parts along another dim than 0, what does dist.all_gather_into_tensor leave where?",
            vary=vary(change=WHOLE, ranks=(1, 2, 3), dims=(2,)),
        ),
        Criterion(
            "cut, from a sum or from another cut",
            3,
            "dist.reduce_scatter_tensor and dist.all_to_all_single cut along dimension 0.",
            vary=vary(change=CUT),
        ),
        Criterion(
            "without a word",
            2,
            "A part of what all have; or a sum in which each number stands on one rank only. (DTensor "
            "has no way from R to P.)",
            vary=vary(change=ALONE),
        ),
        Criterion(
            "in a group",
            1,
            "A rank's place is dist.get_rank(group), and the group is an argument of every call.",
            vary=vary(group=(1, 2)),
        ),
        Criterion(
            "any dtype",
            1,
            "Move numbers as they are, in their dtype, and add up in it.",
            vary=vary(dtype=(torch.float64, torch.int64, torch.bfloat16))
            + both(change=("P", "S(1)"), dtype=torch.bfloat16)
            + both(change=("S(0)", "S(1)"), dtype=torch.int64)
            + both(change=("R", "P"), dtype=torch.int64),
        ),
        Criterion(
            "what is sent",
            1,
            "One collective at most, and the one that brings each rank what it needs and no more. (Over Gloo "
            "DTensor gathers where it could exchange.)",
            how=as_few_bytes,
        ),
        Criterion(
            "x is left alone",
            1,
            "It may be in use elsewhere; what is returned has memory of its own. (DTensor returns a view "
            "where it can.)",
            vary=vary(layout=("strided", "transposed")),
            how=kept,
        ),
    ),
    hints=(
        "Which four changes need other ranks? Which collective gives each rank what it lacks?",
        "Collectives cut and join along dimension 0. How does a part along dim get there?",
        "From S(0) to S(1) on two ranks, with a tensor of 2 x 2: which number goes where?",
    ),
    arguments=parts,
    calls=None,
    possible=lambda case: max(case.cut, default=0) < case.dims,
    driver=drivers.moved,
    kind=Summed,
)
def reshard(case: Moved, given: list[Arguments]) -> list[Expected]:
    """Each place's part of the whole; of a sum that stays one, its summand as it was."""
    source, target = case.change
    tensors = [x for x, _, _ in given]
    if source == "P":
        whole = _sum(tensors)
    else:
        whole = torch.cat(tensors, int(source[2])) if source.startswith("S") else tensors[0]
    return [
        Expected(
            x if source == target else part(whole, target, case.ranks, place).contiguous(),
            {"x": x, "source": source, "target": target},
            returned=None,
        )
        for place, x in enumerate(tensors)
    ]
