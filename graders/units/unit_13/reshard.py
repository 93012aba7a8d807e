"""The grader of `reshard`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.runtime.communication.costs import traffic_of
from graders.grading.called import Called
from graders.grading.cases import both, vary
from graders.grading.expected import Expected, same
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding, Kind, compare
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, OnRanks, Seen, on_ranks
from graders.units.unit_13.drivers import layouts as drivers
from graders.units.unit_13.moved_tensors import Moved, part, parts
from graders.units.unit_13.reshard_cost import call_of

WHOLE = (("S(1)", "R"), ("S(2)", "R"), ("P", "R"))
CUT = (
    ("P", "S(0)"), ("P", "S(1)"), ("S(0)", "S(1)"), ("S(1)", "S(0)"), ("S(2)", "S(1)"), ("S(0)", "S(2)"),
)  # fmt: skip
ALONE = (
    ("R", "S(0)"), ("R", "S(1)"), ("R", "P"), ("S(0)", "P"), ("S(2)", "P"),
    ("R", "R"), ("P", "P"), ("S(1)", "S(1)"),
)  # fmt: skip


def possible(case: Moved) -> bool:
    """Whether there is such a tensor; of a single dimension there is no order."""
    return (
        max(case.cut, default=0) < case.dims
        and not (case.dtype is torch.bool and "P" in case.change)
        and not (case.odd and not case.dtype.is_floating_point)
        and not (case.layout == "transposed" and case.dims == 1)
        # Of truth values no gap is left to be seen.
        and not (case.layout == "strided" and case.dtype is torch.bool)
    )


class Summed(OnRanks[Moved]):
    """Where what comes out is to be a sum, any summands will do."""

    def _judged(
        self, setting: Moved, given: list[Arguments], told: Sequence[Called]
    ) -> tuple[Finding, Finding]:
        found, after = super()._judged(setting, given, told)
        if not setting.to_a_sum:
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
    allowed = traffic_of(call, case.nbytes, case.ranks).sent if call else 0
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
            "Of parts along another dim than 0, what does dist.all_gather_into_tensor leave where? A sum has "
            "to be added up.",
            vary=vary(change=WHOLE, ranks=(1, 2, 3), dims=(1, 2)),
        ),
        Criterion(
            "cut, from a sum or from another cut",
            3,
            "Part r goes to the rank at place r: join the parts along dimension 0, which is where "
            "dist.reduce_scatter_tensor and dist.all_to_all_single cut.",
            vary=vary(change=CUT) + both(change=("S(1)", "S(3)"), dims=4),
        ),
        Criterion(
            "without a word",
            2,
            "A part of what all have; or a sum in which each number stands on one rank only, with zeros on "
            "the others. (DTensor has no way from R to P.)",
            vary=vary(change=ALONE),
        ),
        Criterion(
            "in a group",
            1,
            "A rank's place is dist.get_rank(group), and the group is an argument of every call.",
            vary=vary(group=(1, 2)),
        ),
        Criterion(
            "any numbers",
            1,
            "Move numbers as they are, in their dtype, and add up in it. Do not multiply by 0: 0 * inf is "
            "NaN.",
            vary=vary(
                dtype=(torch.float64, torch.int64, torch.complex64, torch.bfloat16, torch.bool), odd=(True,)
            )
            + both(change=("P", "R"), dtype=torch.int64)
            + both(change=("P", "S(1)"), dtype=torch.bfloat16)
            + both(change=("S(0)", "S(1)"), dtype=torch.int64)
            + both(change=("R", "P"), dtype=torch.int64)
            + both(change=("R", "P"), odd=True),
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
            "It may be in use elsewhere, and in any order in memory; what is returned has memory of its own, "
            "also when the next call comes. (DTensor returns a view where it can.)",
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
    possible=possible,
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
