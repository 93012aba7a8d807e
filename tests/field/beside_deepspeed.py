"""Answers by DeepSpeed, which stands beside the workbook: units 04 and 05."""

from itertools import pairwise

import torch

from course_lib.training.pipeline.actions import Action, Backward, Forward
from tests.field.answers import field

LIBRARY = {"library": "DeepSpeed", "beside": "deepspeed"}


@field("04_horovod", "warmup_lr", **LIBRARY, lacks=["no warm-up"])
def warmup_lr(step: int, warmup_steps: int, base_lr: float, size: int) -> float:
    from deepspeed.runtime.lr_schedules import WarmupLR

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=base_lr)
    schedule = WarmupLR(optimizer, base_lr, base_lr * size, warmup_steps, "linear")
    for _ in range(step + 1):
        schedule.step()
    return float(schedule.get_last_lr()[0])


@field("05_pipeline_parallel", "one_f_one_b", **LIBRARY)
def train_schedule(stage: int, stages: int, micro_batches: int) -> list[Action]:
    from deepspeed.runtime.pipe import schedule

    kinds = {schedule.ForwardPass: Forward, schedule.BackwardPass: Backward}
    steps = schedule.TrainSchedule(micro_batches, stages, stage).steps()
    passes = [kinds[type(each)] for commands in steps for each in commands if type(each) in kinds]
    # It names buffers, and takes the micro-batches in turn.
    return [kind(passes[:place].count(kind)) for place, kind in enumerate(passes)]


@field("05_pipeline_parallel", "balance_stages", **LIBRARY, lacks=["too few layers"])
def partition(costs: list[float], stages: int) -> list[int]:
    from deepspeed.runtime.utils import partition_balanced

    bounds = partition_balanced(costs, stages)
    return [end - begin for begin, end in pairwise(bounds)]
