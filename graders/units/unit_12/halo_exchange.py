"""The grader of `halo_exchange`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.events import Event
from graders.grading.cases import vary
from graders.grading.communication import MEASURED, seconds
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Rng, compare, per_rank
from graders.units.one_by_one import look
from graders.units.passes import calls_by_pass
from graders.units.unit_12.both_passes import Given, both_passes
from graders.units.unit_12.cut import Cut
from graders.units.unit_12.drivers import space

RIGHT = ("rows", "gradient")


@dataclass(frozen=True, slots=True)
class Strips(Cut):
    """width: of the halo. dim: along which images are cut; None for the default."""

    width: int = feature(2, "width {}")
    dim: int | None = feature(None, lambda dim: "" if dim is None else f"dim={dim}")

    @property
    def options(self) -> dict[str, int]:
        return {"width": self.width} | ({} if self.dim is None else {"dim": self.dim})


def drawn(rng: Rng, case: Strips) -> Given:
    """A strip for each rank."""
    other = rng.integer(2, 4)
    shapes = [(other, length) if case.dim == 3 else (length, other) for length in case.sizes]
    return [[rng.normal(2, 3, *shape, dtype=case.dtype)] for shape in shapes]


def one_message_each(where: str, calls: Sequence[Event], neighbours: Sequence[int], nbytes: int) -> Finding:
    """Passes if of these calls there is one send of at most so many bytes to each neighbour, and no other."""
    sends = [call for call in calls if call.op == "send"]
    seen = sorted(call.peer for call in sends if call.peer is not None)
    if seen != list(neighbours):
        kind = Kind.TOO_MUCH if len(seen) > len(neighbours) else Kind.OTHER
        return Finding(False, f"{where} sends to ranks {seen}; expected {list(neighbours)}.", kind)
    most = max((call.nbytes for call in sends), default=0)
    return compare.at_most(most, nbytes, f"{where}, bytes of a message", kind=Kind.TOO_MUCH)


def one_to_each(case: Strips, given: Given, rank: int, label: str, calls: Sequence[Event]) -> Finding:
    """Passes if this rank sends each neighbour one message of `width` rows, and no more."""
    where = f"in {label} rank {rank}"
    if others := sorted({call.op for call in calls} - {"send", "recv"}):
        return Finding(False, f"{where} calls {', '.join(others)}; messages are enough.")
    neighbours = [other for other in (rank - 1, rank + 1) if 0 <= other < len(given)]
    nbytes = given[rank][0].narrow(case.dim or 2, 0, case.width).nbytes
    if not case.width:
        return Finding(True, "Nothing has to be sent.")
    return one_message_each(where, calls, neighbours, nbytes)


def all_at_once(answer: Answer, rng: Rng) -> Finding:
    """Passes if neither pass, on eight ranks, takes longer than four messages."""
    x = [rng.normal(2, 3, 3, 50) for _ in range(8)]
    cluster = Cluster(nodes=8, intra_node=MEASURED, inter_node=MEASURED)
    observed = answer.launch(space.paced, per_rank(x), 1, ranks=8, cluster=cluster)
    nbytes = x[0][:, :, :1].nbytes
    allowed = seconds(4, 4 * nbytes)
    for number, label in enumerate(("forward", "backward")):
        begins = [event.start for event in observed.events if event.op == label]
        ends = [
            call.end
            for rank in range(8)
            for call in calls_by_pass(observed, rank, ("forward", "backward"))[number]
            if call.op in ("send", "recv")
        ]
        taken = max(ends, default=0.0) - min(begins, default=0.0)
        if taken > allowed * (1 + 1e-9):
            said = f"{label} of 8 ranks takes {taken * 1e3:.3f} ms on links of 1 ms and 1 MB/s"
            return Finding(False, f"{said}; four messages of {nbytes} bytes take {allowed * 1e3:.3f} ms.")
    return Finding(True, "Neither pass takes longer than four messages.")


@both_passes(
    base=Strips(),
    names=("x",),
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
                sizes=((3, 5, 4), (3,), (2, 2, 4, 2)),
                width=(0, 1),
                dim=(3,),
                dtype=(torch.float64,),
                calls=(2,),
            ),
        ),
        Criterion(
            "neighbours only",
            3,
            "One message to each neighbour in each pass, of `width` rows; no collective.",
            needs=(*RIGHT, "other strips"),
            how=look("calls"),
        ),
        Criterion(
            "all at once",
            2,
            "dist.send waits until its message is received: let nobody wait for a neighbour that waits.",
            needs=(*RIGHT, "neighbours only"),
            ask=all_at_once,
        ),
        Criterion(
            "group",
            1,
            "Neighbours are those in the group, in backward too.",
            needs=RIGHT,
            vary=vary(grouped=(True,)),
        ),
    ),
    hints=(
        "Which rows of its own does a rank send up, and which down? Which ranks send in one direction only?",
        "In backward, which part of what arrives belongs to whom? Which rows of x have two parts?",
        "dist.P2POp(dist.isend, tensor, group=group, group_peer=rank) and dist.batch_isend_irecv start all "
        "messages at once. Both passes swap something: what goes up, what goes down?",
    ),
    arguments=drawn,
    calls=one_to_each,
)
def halo_exchange(case: Strips, given: Given) -> list[Tensor]:
    """The last rows before, a rank's own, and the first after; zeros at the image's edges."""
    dim, width = case.dim or 2, case.width
    x = [own for (own,) in given]
    edge = torch.zeros_like(x[0].narrow(dim, 0, width))
    above = [edge, *(each.narrow(dim, each.shape[dim] - width, width) for each in x[:-1])]
    below = [*(each.narrow(dim, 0, width) for each in x[1:]), edge]
    return [torch.cat(parts, dim) for parts in zip(above, x, below, strict=True)]
