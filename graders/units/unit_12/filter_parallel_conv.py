"""The grader of `filter_parallel_conv`."""

import torch
from torch import Tensor

from graders.units.unit_12.both_passes import Given, both_passes
from graders.units.unit_12.channels import Channels, convolved, drawn, rows, two_collectives


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
        two_collectives("all_gather", "reduce_scatter", lambda given: sum(x.nbytes for x, _ in given)),
    ),
    hints=(
        "Which channels does one filter need, and who has them?",
        "An all-gather puts the ranks in front, [p, samples, ...]. Where do they belong?",
        "If forward gathers from all, what does backward do with a gradient for all channels, of which each "
        "rank has another part of the sum?",
    ),
    arguments=lambda rng, case: drawn(rng, case, rng.integer(2, 3), case.ranks * case.channels),
)
def filter_parallel_conv(case: Channels, given: Given) -> list[Tensor]:
    """The whole image by each rank's filters."""
    image = torch.cat([x for x, _ in given], 1)
    return [convolved(image, weight) for _, weight in given]
