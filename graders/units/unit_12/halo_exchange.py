"""The grader of `halo_exchange`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.cases import vary
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng, compare
from graders.grading.traffic import Allowed, in_time
from graders.units.unit_12.both_passes import Cut, Given, both_passes, in_passes

RIGHT = ("rows", "gradient")


@dataclass(frozen=True, slots=True)
class Strips(Cut):
    """sizes: of the strips of the first ranks. width: of the halo. dim: along which images are cut; None for
    the default.
    """

    sizes: tuple[int, ...] = feature((4,) * 8, "strips of {}")
    width: int = feature(2, "width {}")
    dim: int | None = feature(None, lambda dim: "" if dim is None else f"dim={dim}")


def drawn(rng: Rng, case: Strips) -> Given:
    """A strip for each rank."""
    other = rng.integer(2, 4)
    strips = [rng.normal(2, 3, length, other, dtype=case.dtype) for length in case.sizes[: case.ranks]]
    return [[strip.mT.contiguous() if case.dim == 3 else strip] for strip in strips]


def one_message_each(where: str, calls: Sequence[Event], neighbours: Sequence[int], nbytes: int) -> Finding:
    """Passes if of these calls there is one send of at most so many bytes to each neighbour, and no other."""
    sends = [call for call in calls if call.op == "send"]
    seen = sorted(call.peer for call in sends if call.peer is not None)
    if seen != list(neighbours):
        kind = Kind.TOO_MUCH if len(seen) > len(neighbours) else Kind.OTHER
        return Finding(False, f"{where} sends to ranks {seen}; expected {list(neighbours)}.", kind)
    most = max((call.nbytes for call in sends), default=0)
    return compare.at_most(most, nbytes, f"{where}, bytes of a message", kind=Kind.TOO_MUCH)


def edge(case: Strips, given: Given) -> int:
    """Bytes of a message."""
    return given[0][0].narrow(case.dim or 2, 0, case.width).nbytes


def one_to_each(case: Strips, given: Given, rank: int, label: str, calls: Sequence[Event]) -> Finding:
    """Passes if this rank sends each neighbour one message of `width` rows, and no more."""
    where = f"in {label} rank {rank}"
    if others := sorted({call.op for call in calls} - {"send", "recv"}):
        return Finding(False, f"{where} calls {', '.join(others)}; messages are enough.")
    if not case.width:
        return Finding(True, "Nothing has to be sent.")
    neighbours = [other for other in (rank - 1, rank + 1) if 0 <= other < len(given)]
    return one_message_each(where, calls, neighbours, edge(case, given))


def all_at_once(tried: Tried[Any]) -> Finding | None:
    """Passes if both passes, on eight ranks, take no longer than four messages each."""
    case, seen = tried.case.features, tried.seen
    nbytes = edge(case, [own for own, *_ in seen.given[0]])
    return in_time(seen.traffic, Allowed(0, 0, 8, 8 * nbytes)) if case.ranks == 8 else None


@both_passes(
    base=Strips(),
    names=("x",),
    options=("width", "dim"),
    minutes=40,
    difficulty=3,
    rubric=(
        Criterion("rows", 4, "Above stand the last rows of the rank before, below the first of the next."),
        Criterion(
            "gradient",
            3,
            "A row that was copied has a gradient here and one there: it comes back, and both are added. "
            "What arrives at zeros goes nowhere; and it may be another function's too: add to a copy.",
            vary=vary(only=(0,)),
        ),
        Criterion(
            "other strips",
            2,
            "One rank, two; strips of other heights, as low as the halo, whose rows both neighbours borrow; "
            "width 0; columns, if dim says so. What backward needs belongs to one call: keep it in ctx.",
            needs=RIGHT,
            vary=vary(
                ranks=(1, 8),
                sizes=((3, 5, 4, 2) * 2, (2, 2, 4, 2) * 2),
                width=(0, 1),
                dim=(3,),
                dtype=(torch.float64,),
                times=(2,),
            ),
        ),
        Criterion(
            "neighbours only",
            3,
            "One message to each neighbour in each pass, of `width` rows; no collective.",
            needs=(*RIGHT, "other strips"),
            how=in_passes(one_to_each),
        ),
        Criterion(
            "all at once",
            2,
            "dist.send waits until its message is received: let nobody wait for a neighbour that waits.",
            needs=(*RIGHT, "neighbours only"),
            how=all_at_once,
        ),
        Criterion("group", 1, "Neighbours are those in the group.", needs=RIGHT, vary=vary(group=(1,))),
    ),
    hints=(
        "Which rows of its own does a rank send up, and which down? Which ranks send in one direction only?",
        "In backward, which part of what arrives belongs to whom? Which rows of x have two parts?",
        "dist.P2POp(dist.isend, tensor, group=group, group_peer=rank) and dist.batch_isend_irecv start all "
        "messages at once. Both passes swap something: what goes up, what goes down?",
    ),
    arguments=drawn,
)
def halo_exchange(case: Strips, given: Given) -> list[Tensor]:
    """The last rows before, a rank's own, and the first after; zeros at the image's edges."""
    dim, width = case.dim or 2, case.width
    x = [own for (own,) in given]
    edge = torch.zeros_like(x[0].narrow(dim, 0, width))
    above = [edge, *(each.narrow(dim, each.shape[dim] - width, width) for each in x[:-1])]
    below = [*(each.narrow(dim, 0, width) for each in x[1:]), edge]
    return [torch.cat(parts, dim) for parts in zip(above, x, below, strict=True)]
