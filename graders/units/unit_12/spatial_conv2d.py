"""The grader of `spatial_conv2d`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.runtime.communication.events import Event
from graders.grading.cases import both, vary
from graders.grading.communication import in_words
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng, compare
from graders.units.unit_12.both_passes import Cut, Given, both_passes, in_passes
from graders.units.unit_12.halo_exchange import one_message_each

RIGHT = ("result", "gradient of the image", "gradient of the weight")


@dataclass(frozen=True, slots=True)
class Convolved(Cut):
    """sizes: rows of each rank's strip. kernel: rows and columns. stride: None for the default."""

    sizes: tuple[int, ...] = feature((4, 4, 4), "strips of {} rows")
    kernel: tuple[int, int] = feature((3, 3), "a kernel of {}")
    stride: int | None = feature(None, lambda stride: f"stride {stride}" if stride else "")


def drawn(rng: Rng, case: Convolved) -> Given:
    """A strip for each rank, and the weight."""
    weight = rng.normal(rng.integer(2, 4), 2, *case.kernel, dtype=case.dtype)
    columns = rng.integer(4, 6)
    return [[rng.normal(2, 2, rows, columns, dtype=case.dtype), weight] for rows in case.sizes]


def halos_and_one_sum(
    case: Convolved, given: Given, rank: int, label: str, calls: Sequence[Event]
) -> Finding:
    """Passes if there are halos, and one all-reduce in backward if the weight learns."""
    where = f"in {label} rank {rank}" + (", whose weight is frozen," if case.frozen == 1 else "")
    x, weight = given[rank]
    sums = [call for call in calls if call.op not in ("send", "recv")]
    seen = [call.op for call in sums]
    wanted = ["all_reduce"] if label == "backward" and case.frozen != 1 else []
    if seen != wanted and (seen or len(given) > 1):
        said = f"{where} calls {in_words(seen)} beside its messages; expected {in_words(wanted)}."
        return Finding(False, said, Kind.TOO_MUCH if len(seen) > len(wanted) else Kind.OTHER)
    if sums and sums[0].nbytes > weight.nbytes:
        return compare.at_most(sums[0].nbytes, weight.nbytes, f"{where}, bytes summed", kind=Kind.TOO_MUCH)
    # With no rows to send, or none that learn, there may be no messages.
    width = case.kernel[0] // 2
    needless = not width or (label == "backward" and case.frozen == 0)
    if needless and not any(call.op == "send" for call in calls):
        return Finding(True, "Nothing has to be sent.")
    neighbours = [other for other in (rank - 1, rank + 1) if 0 <= other < len(given)]
    return one_message_each(where, calls, neighbours, x[:, :, :width].nbytes)


@both_passes(
    base=Convolved(),
    names=("x_shard", "the weight"),
    options=("stride",),
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion("result", 3, "Above and below the padding is the neighbours'; left and right it is zeros."),
        Criterion("gradient of the image", 1, "Lent rows have a gradient there, too.", vary=vary(only=(0,))),
        Criterion(
            "gradient of the weight",
            3,
            "Every rank used the weight on its own pixels: the whole gradient is the sum over ranks.",
            vary=vary(only=(1,)),
        ),
        Criterion(
            "strides and kernels",
            3,
            "How many rows the kernel needs above is weight.shape[2] // 2; how many columns, shape[3] // 2. "
            "A hook on a tensor that is given stays on it for ever: the next call's gradient meets it too.",
            needs=RIGHT,
            vary=vary(
                sizes=((3, 5, 4),),
                kernel=((3, 5), (5, 1), (1, 3)),
                dtype=(torch.float64,),
                frozen=(0, 1),
                times=(2,),
            )
            + both(sizes=(4, 2, 1), stride=2)
            + both(ranks=1, sizes=(5,), stride=2),
        ),
        Criterion(
            "calls and bytes",
            1,
            "Halos in both passes; in backward one all-reduce of the weight's gradient, if there is one.",
            needs=(*RIGHT, "strides and kernels"),
            how=in_passes(halos_and_one_sum),
        ),
        Criterion("group", 1, "Halo and sum are the group's.", needs=RIGHT, vary=vary(group=(1,))),
    ),
    hints=(
        "Which padding does conv2d still have to add to a strip that has rows enough above and below, "
        "with its halo?",
        "Which pixels has this rank's weight seen, and which have the others' copies seen?",
        "A hook on weight.view_as(weight) gets the gradient, and what it returns takes its place.",
    ),
    arguments=drawn,
)
def spatial_conv2d(case: Convolved, given: Given) -> list[Tensor]:
    """The whole image's convolution, in strips."""
    weight, stride = given[0][1], case.stride or 1
    padding = weight.shape[2] // 2, weight.shape[3] // 2
    image = torch.cat([x for x, _ in given], 2)
    result = functional.conv2d(image, weight, stride=stride, padding=padding)
    return list(torch.split(result, [-(-rows // stride) for rows in case.sizes], 2))
