"""What the two convolutions share whose channels are cut over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.runtime.communication.events import Event
from graders.grading.cases import both, vary
from graders.grading.communication import in_words
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind
from graders.units.one_by_one import look
from graders.units.unit_12.cut import Cut

BOTH = ("result", "gradient of the image", "gradient of the weight")


@dataclass(frozen=True, slots=True)
class Channels(Cut):
    """sizes: how many channels each rank has, all as many. kernel: rows and columns."""

    sizes: tuple[int, ...] = feature((2, 2, 2), "channels {}")
    kernel: tuple[int, int] = feature((3, 3), "a kernel of {}")
    samples: int = feature(2, "{} samples")


def rows(result: str, image: str, weight: str, calls: str) -> tuple[Criterion, ...]:
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
            vary=vary(kernel=((3, 1), (1, 5)), dtype=(torch.float64,), frozen=(0,), calls=(2,))
            + both(sizes=(1,))
            + both(sizes=(1, 1, 1, 1), samples=1),
        ),
        Criterion("calls and bytes", 2, calls, needs=(*BOTH, "other sizes"), how=look("calls")),
        Criterion(
            "group",
            1,
            "Collectives take a group, in backward too.",
            needs=BOTH,
            vary=vary(grouped=(True,)),
        ),
    )


def convolved(image: Tensor, weight: Tensor) -> Tensor:
    """With zeros around it, so that the result is as large."""
    return functional.conv2d(image, weight, padding=(weight.shape[2] // 2, weight.shape[3] // 2))


def one_collective(where: str, calls: Sequence[Event], kind: str | None, moving: int, ranks: int) -> Finding:
    """Passes if that is one call of this kind (None: none), in which a rank sends no more than all but its
    own part of `moving` bytes.
    """
    seen = [call.op for call in calls]
    if len(seen) != (kind is not None) or (kind is not None and not seen[0].startswith(kind)):
        wanted = f"one {kind}" if kind else "nothing, for no image needs a gradient"
        said = f"{where} calls {in_words(seen)}; expected {wanted}."
        return Finding(False, said, Kind.TOO_MUCH if len(seen) > (kind is not None) else Kind.OTHER)
    allowed = moving * (ranks - 1) // ranks
    sent = sum(call.sent for call in calls)
    text = f"{where} sends {sent:,} bytes; {allowed:,} are enough."
    return Finding(sent <= allowed, text, Kind.OTHER if sent <= allowed else Kind.TOO_MUCH)
