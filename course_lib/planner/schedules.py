"""The schedule by which plans are carried out here: 1F1B, as PyTorch has it."""

from collections.abc import Iterator

from course_lib.training.pipeline.actions import Action, Backward, Forward


def torchs_1f1b(stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """What a stage does, in order, by torch.distributed.pipelining's own 1F1B."""
    # Here, since it takes a second to import.
    from torch.distributed.pipelining.schedules import _get_1f1b_rank_ops

    ahead = min(micro_batches, stages - 1 - stage)
    numbers = [stage] * 2
    operations = _get_1f1b_rank_ops(  # type: ignore[no-untyped-call]
        1, stages, ahead, micro_batches - ahead, ahead, stage, lambda _: numbers[0], lambda _: numbers[1]
    )
    for operation in operations:
        if operation is not None:
            kind = Forward if operation.computation_type.name == "FORWARD" else Backward
            yield kind(operation.microbatch_index)
