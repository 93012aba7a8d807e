"""The grader of `channel_parallel_conv`."""

import torch
from torch import Tensor

from graders.units.unit_12.both_passes import Given, both_passes
from graders.units.unit_12.channels import Channels, convolved, drawn, rows, two_collectives


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
        two_collectives("reduce_scatter", "all_gather", lambda given: convolved(*given[0]).nbytes),
    ),
    hints=(
        "What does conv2d make of some channels and the weights that belong to them?",
        "Which collective adds up over ranks, and leaves each of them a part?",
        "What arrives in backward is for this rank's filters. Whose did these channels help to compute?",
    ),
    arguments=lambda rng, case: drawn(rng, case, case.ranks * rng.integer(2, 3), case.channels),
)
def channel_parallel_conv(case: Channels, given: Given) -> list[Tensor]:
    """Each rank's filters of the whole image's convolution."""
    image, weight = (torch.cat(parts, 1) for parts in zip(*given, strict=True))
    return list(convolved(image, weight).chunk(len(given), 1))
