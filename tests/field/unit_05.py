"""Answers to exercises of unit 05."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, schedules

from course_lib.planner import torchs_1f1b
from course_lib.training.pipeline.actions import Action, Backward, BackwardInput, BackwardWeight, Forward
from tests.field.answers import field

UNIT = "05_pipeline_parallel"
KINDS = {"F": Forward, "B": Backward, "I": BackwardInput, "W": BackwardWeight}


def without_ranks(name: str, stages: int, micro_batches: int, chunks: int = 1) -> Any:
    """A schedule of PyTorch's with what its order depends on, and no stages to run."""
    kind = getattr(schedules, name)
    schedule = kind.__new__(kind)
    schedule._num_stages = schedule.pp_group_size = stages
    schedule._n_microbatches, schedule.n_local_stages = micro_batches, chunks
    schedule.number_of_rounds = max(1, micro_batches // stages)
    schedule.microbatches_per_round = micro_batches // schedule.number_of_rounds
    return schedule


def as_actions(order: Iterable[Any], stages: int) -> list[Action]:
    """The same in the workbook's words."""
    computed = [each for each in order if each is not None and each.computation_type.value in KINDS]
    return [
        KINDS[each.computation_type.value](each.microbatch_index, each.stage_index // stages)
        for each in computed
    ]


@field(UNIT, "gpipe", "ScheduleGPipe")
def schedule_gpipe(stage: int, stages: int, micro_batches: int) -> list[Action]:
    order = without_ranks("ScheduleGPipe", stages, micro_batches)._get_pipeline_order()
    return as_actions(order[stage], stages)


@field(UNIT, "one_f_one_b", "_get_1f1b_rank_ops")
def rank_ops(stage: int, stages: int, micro_batches: int) -> list[Action]:
    return list(torchs_1f1b(stage, stages, micro_batches))


@field(
    UNIT,
    "interleaved",
    "ScheduleInterleaved1F1B",
    lacks=["any numbers"],
)
def interleaved_1f1b(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    schedule = without_ranks("ScheduleInterleaved1F1B", stages, micro_batches, chunks)
    return as_actions(schedule._calculate_single_rank_operations(stage), stages)


@field(UNIT, "zero_bubble", "ScheduleInterleavedZeroBubble")
def interleaved_zero_bubble(stage: int, stages: int, micro_batches: int) -> list[Action]:
    schedule = without_ranks("ScheduleInterleavedZeroBubble", stages, micro_batches)
    return as_actions(schedule._calculate_single_rank_operations(stage), stages)


@field(UNIT, "run_stage", "PipelineStage", lacks=["one forward", "messages and bytes", "any layout"])
def pipeline_stage(
    stage: nn.Module,
    x: Tensor,
    target: Tensor | None,
    loss_function: Callable[[Tensor, Tensor], Tensor],
    share: float = 1.0,
) -> Tensor | None:
    rank = dist.get_rank()
    here = PipelineStage(stage, rank, dist.get_world_size(), torch.device("cpu"))
    schedule = ScheduleGPipe(here, 1, loss_fn=lambda output, wanted: share * loss_function(output, wanted))
    losses: list[Tensor] = []
    schedule.step(*([x] if rank == 0 else []), target=target, losses=losses)
    return losses[0].detach() if losses else None
