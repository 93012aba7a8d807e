"""Answers by torchgpipe, which stands beside the workbook: unit 05."""

from course_lib.training.pipeline.actions import Action, Backward, Forward
from tests.field.answers import field


@field("05_pipeline_parallel", "gpipe", "torchgpipe", beside="torchgpipe")
def clock(stage: int, stages: int, micro_batches: int) -> list[Action]:
    from torchgpipe.pipeline import clock_cycles

    ahead = [batch for cycle in clock_cycles(micro_batches, stages) for batch, on in cycle if on == stage]
    # Its backward is autograd's, from the last micro-batch to the first.
    return [*map(Forward, ahead), *map(Backward, reversed(ahead))]
