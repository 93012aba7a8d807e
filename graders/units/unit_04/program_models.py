"""What came back of two processes' models, and what a grader computes beside them."""

import torch
from torch import Tensor, nn

from graders.grading.kit import AnswerFailed, FailureKind, Finding, compare
from graders.units.models import load_values, state_of
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.models import Shifted
from graders.units.unit_04.replies import ProcessReply

RANKS = 2


def starts_from(later: list[ProcessReply], model: Shifted) -> Finding:
    """Passes if the first batch found the checkpoint's weights on every rank."""
    weight = state_of(model)[0].detach()
    for rank, process in enumerate(later):
        seen = process.starts[0][0] if process.starts else None
        start = compare.close(seen, weight, f"the weight before the first batch on rank {rank}", 1e-6, 1e-7)
        if not start.passed:
            return start
    return Finding(True, "All ranks go on from the checkpoint's weights.")


def optimizer_of(model: nn.Module) -> PlainSGD:
    """That of `train_alone`, scaled."""
    return PlainSGD(model.parameters(), 0.05 * RANKS, decay=0.01)


def model_of(process: ProcessReply) -> Shifted:
    """The model that a process has trained. Raises AnswerFailed if it has other parameters."""
    model = Shifted([torch.empty(3, 6), torch.empty(3), torch.empty(6)])
    if [each.shape for each in process.weights] != [each.shape for each in state_of(model)]:
        raise AnswerFailed(FailureKind.UNREADABLE, "What came back are not a model's parameters.")
    load_values(state_of(model), process.weights)
    return model


def samples_in(inputs: Tensor, batch: Tensor) -> list[int]:
    """Which samples of inputs [n, 6] a batch [B, 6] holds; -1 for what is none."""
    if batch.dim() != 2 or batch.shape[1:] != inputs.shape[1:] or batch.dtype != inputs.dtype:
        return []
    found = (batch[:, None] == inputs[None]).all(2)
    return [int(row.nonzero()[0]) if row.any() else -1 for row in found]


def all_of(inputs: Tensor, batch: Tensor) -> bool:
    """Whether a batch has samples of inputs [n, 6], and no others."""
    return bool(numbers := samples_in(inputs, batch)) and -1 not in numbers


def weights_as(run: list[ProcessReply], model: nn.Module) -> Finding:
    """Passes if every rank has this model's parameters and buffer."""
    wanted = [each.detach() for each in state_of(model)]
    return compare.first_failure(
        compare.close(got, value, f"tensor {number} of the model on rank {rank}", 1e-4, 1e-5)
        for rank, process in enumerate(run)
        for number, (got, value) in enumerate(compare.side_by_side(process.weights, wanted))
    )
