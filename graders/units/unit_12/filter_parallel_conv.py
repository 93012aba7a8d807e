"""The grader of `filter_parallel_conv`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.kit import Finding, Rng
from graders.units.unit_12.both_passes import Given, both_passes
from graders.units.unit_12.channels import Channels, convolved, one_collective, rows


def drawn(rng: Rng, case: Channels) -> Given:
    """Some channels of an image for each rank, and filters for all of them."""
    pixels, filters, all_channels = (rng.integer(3, 5), rng.integer(3, 5)), rng.integer(2, 3), sum(case.sizes)
    return [
        [
            rng.normal(case.samples, channels, *pixels, dtype=case.dtype),
            rng.normal(filters, all_channels, *case.kernel, dtype=case.dtype),
        ]
        for channels in case.sizes
    ]


def two_collectives(case: Channels, given: Given, rank: int, label: str, calls: Sequence[Event]) -> Finding:
    """Passes if forward gathers the image, and backward scatters its gradient where it needs one."""
    kind = "all_gather" if label != "backward" else "reduce_scatter" if case.frozen != 0 else None
    image = sum(x.nbytes for x, _ in given)
    return one_collective(f"in {label} rank {rank}", calls, kind, image, len(given))


@both_passes(
    base=Channels(),
    names=("x_shard", "the weight"),
    minutes=25,
    difficulty=3,
    rubric=rows(
        "A filter looks at all channels: first bring them together, in the order of the ranks, for each "
        "sample.",
        "Each rank's filters send a gradient to all channels: for one rank's channels that is a sum.",
        "The filters here have seen the whole image: their gradient is whole.",
        "Forward one all-gather of x_shard; backward one reduce-scatter of the gradient of the whole.",
    ),
    hints=(
        "Which channels does one filter need, and who has them?",
        "An all-gather puts the ranks in front, [p, samples, ...]. Where do they belong?",
        "If forward gathers from all, what does backward do with a gradient for all channels, of which each "
        "rank has another part of the sum?",
    ),
    arguments=drawn,
    calls=two_collectives,
)
def filter_parallel_conv(case: Channels, given: Given) -> list[Tensor]:
    """The whole image by each rank's filters."""
    image = torch.cat([x for x, _ in given], 1)
    return [convolved(image, weight) for _, weight in given]
