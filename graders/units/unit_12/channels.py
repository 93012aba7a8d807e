"""What the two convolutions share whose channels are cut over ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.runtime.communication.events import Event
from graders.grading.cases import both, vary
from graders.grading.communication import in_words
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng
from graders.units.unit_12.both_passes import Calls, Cut, Given, in_passes

BOTH = ("result", "gradient of the image", "gradient of the weight")


@dataclass(frozen=True, slots=True)
class Channels(Cut):
    """channels: of each rank's part. kernel: rows and columns."""

    channels: int = feature(2, "{} channels a rank")
    kernel: tuple[int, int] = feature((3, 3), "a kernel of {}")
    samples: int = feature(2, "{} samples")


def drawn(rng: Rng, case: Channels, filters: int, channels: int) -> Given:
    """Some channels of an image for each rank, and a weight of so many filters and channels."""
    image = case.samples, case.channels, rng.integer(3, 5), rng.integer(3, 5)
    weight = filters, channels, *case.kernel
    return [[rng.normal(*shape, dtype=case.dtype) for shape in (image, weight)] for _ in range(case.ranks)]


def rows(result: str, image: str, weight: str, calls: str, look: Calls) -> tuple[Criterion, ...]:
    """The criteria of both, with the hints where they differ."""
    return (
        Criterion("result", 3, result),
        Criterion("gradient of the image", 2, image, vary=vary(only=(0,))),
        Criterion("gradient of the weight", 1, weight, needs=BOTH[:2], vary=vary(only=(1,))),
        Criterion(
            "other sizes",
            2,
            "One rank, four; one sample or more; any odd kernel; float64; an image without gradient; and "
            "several calls in one graph, each with what it has kept in ctx.",
            needs=BOTH,
            vary=vary(kernel=((3, 1), (1, 5)), dtype=(torch.float64,), frozen=(0,), times=(2,), ranks=(1,))
            + both(ranks=4, channels=1, samples=1),
        ),
        Criterion("calls and bytes", 2, calls, needs=(*BOTH, "other sizes"), how=in_passes(look)),
        Criterion("group", 1, "Both passes' collectives take the group.", needs=BOTH, vary=vary(group=(1,))),
    )


def convolved(image: Tensor, weight: Tensor) -> Tensor:
    """With zeros around it, so that the result is as large."""
    return functional.conv2d(image, weight, padding=(weight.shape[2] // 2, weight.shape[3] // 2))


def two_collectives(forward: str, backward: str, whole: Callable[[Given], int]) -> Calls:
    """Passes if each pass has one collective of this kind, in which a rank sends at most all bytes of the
    whole but its own part. Where no image needs a gradient, backward needs no reduce-scatter.
    """

    def looked_at(case: Channels, given: Given, rank: int, label: str, calls: Sequence[Event]) -> Finding:
        needless = case.frozen == 0 and label == "backward" and backward == "reduce_scatter"
        wanted = [] if needless else [backward if label == "backward" else forward]
        seen, sent = [call.op for call in calls], sum(call.sent for call in calls)
        allowed = whole(given) * (case.ranks - 1) // case.ranks
        said = f"in {label} rank {rank} calls {in_words(seen)}, and sends {sent:,} bytes"
        right = len(seen) == len(wanted) and all(map(str.startswith, seen, wanted)) and sent <= allowed
        kind = Kind.TOO_MUCH if len(seen) > len(wanted) or sent > allowed else Kind.OTHER
        return Finding(right, f"{said}; expected {in_words(wanted)}, {allowed:,} bytes are enough.", kind)

    return looked_at
