"""The grader of `channel_parallel_conv`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.kit import Finding, Rng
from graders.units.unit_12.both_passes import Given, both_passes
from graders.units.unit_12.channels import Channels, convolved, one_collective, rows


def drawn(rng: Rng, case: Channels) -> Given:
    """Some channels of an image for each rank, and all filters for these."""
    pixels, filters = (rng.integer(3, 5), rng.integer(3, 5)), len(case.sizes) * rng.integer(2, 3)
    return [
        [
            rng.normal(case.samples, channels, *pixels, dtype=case.dtype),
            rng.normal(filters, channels, *case.kernel, dtype=case.dtype),
        ]
        for channels in case.sizes
    ]


def two_collectives(case: Channels, given: Given, rank: int, label: str, calls: Sequence[Event]) -> Finding:
    """Passes if forward scatters the sum of results, and backward gathers their gradient."""
    kind = "all_gather" if label == "backward" else "reduce_scatter"
    whole = convolved(*given[0]).nbytes
    return one_collective(f"in {label} rank {rank}", calls, kind, whole, len(given))


@both_passes(
    base=Channels(),
    names=("x_shard", "the weight"),
    minutes=20,
    difficulty=3,
    rubric=rows(
        "Every rank has a part of each sum over channels, for all filters: add up, keep your filters.",
        "The channels here went into all filters' results: backward needs the gradients of all of them.",
        "Each slice of the weight went into all filters' results too.",
        "Forward one reduce-scatter of the partial results; backward one all-gather of the gradient.",
    ),
    hints=(
        "What does conv2d make of some channels and the weights that belong to them?",
        "Which collective adds up over ranks, and leaves each of them a part?",
        "What arrives in backward is for this rank's filters. Whose did these channels help to compute?",
    ),
    arguments=drawn,
    calls=two_collectives,
)
def channel_parallel_conv(case: Channels, given: Given) -> list[Tensor]:
    """Each rank's filters of the whole image's convolution."""
    image, weight = (torch.cat(parts, 1) for parts in zip(*given, strict=True))
    return list(convolved(image, weight).chunk(len(given), 1))
