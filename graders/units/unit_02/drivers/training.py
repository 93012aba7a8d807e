"""Drivers of unit 02: a script for many processes."""

import torch
import torch.distributed as dist
from torch import Tensor

from graders.grading.answer import AnswerFunction
from graders.units.models import copies_of
from graders.units.random_states import random_states
from graders.units.unit_02.numbered import DEVICE, Descent, MovesNoted, Numbered, Samples
from graders.units.unit_02.replies import TrainingReply


def many_processes(
    answer: AnswerFunction,
    values: list[Tensor],
    samples: tuple[Tensor, Tensor],
    rate: float,
    epochs: int,
    batch_size: int,
    seed: int,
) -> TrainingReply:
    """How the answer trains a `Numbered` with these values on samples: inputs [N, 1 + F] and labels [N]."""
    torch.default_generator.manual_seed(1000 + dist.get_rank())
    model = Numbered(values)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # from whatever was done with the model before
    optimizer = Descent(model, rate)
    with torch.enable_grad(), MovesNoted() as moves:
        history = answer(model, Samples(*samples), optimizer, epochs, batch_size, seed, DEVICE)
    moved = model.moved and moves.all_of([*model.inputs, *moves.labels])
    random = random_states()["torch"]
    return TrainingReply(history, copies_of(model.parameters()), optimizer.batches, moved, random)
