"""Drivers of unit 02: a script for many processes."""

import random
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from graders.grading.answer import AnswerFunction
from graders.units.hashing import hashes_salted
from graders.units.models import copies_of
from graders.units.unit_02.numbered import DEVICE, Descent, MovesNoted, Numbered, Samples, is_there
from graders.units.unit_02.replies import TrainingReply


def many_processes(
    answer: AnswerFunction,
    values: list[Tensor],
    samples: tuple[Tensor, Tensor],
    rate: float,
    uphill: bool,
    epochs: int,
    batch_size: int,
    seed: int,
    device: bool,
    older: bool,
) -> TrainingReply:
    """How the answer trains a `Numbered` with these values on samples: inputs [N, 1 + F, 1] and labels [N].
    uphill: see `Descent`. device: whether to watch what is moved there. older: whether there are gradients
    already, from whatever was done with the model before.

    Each rank has random numbers of its own, and what `hash` makes of a text. What libraries warn of is not
    printed: that there is no GPU to pin memory for, say.
    """
    warnings.simplefilter("ignore")  # what grades puts the filters back
    rank = dist.get_rank()
    for seed_library in (torch.default_generator.manual_seed, random.seed, np.random.seed):
        seed_library(1000 + rank)
    model = Numbered(values)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if older else None
    optimizer, moves = Descent(model, rate, uphill), MovesNoted()
    watched: AbstractContextManager[Any] = moves if device else nullcontext()
    with torch.enable_grad(), watched, hashes_salted(answer, dist.get_rank):
        history = answer(model, Samples(*samples), optimizer, epochs, batch_size, seed, DEVICE)
    batches = [*model.inputs, *moves.labels]
    there = not device or not batches or is_there(batches)
    moved = is_there(list(model.parameters()))
    left = "" if moved else "a model", "" if there else "a batch", moves.mixed
    within = -1.0 - rank if model.drawn is None else model.drawn
    draws = within, float(torch.rand(())), random.random(), float(np.random.random())
    return TrainingReply(
        history,
        copies_of(model.parameters()),
        optimizer.batches,
        optimizer.sums,
        left,
        draws,
        dist.is_initialized(),
    )
