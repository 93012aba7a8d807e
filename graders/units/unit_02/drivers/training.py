"""Drivers of unit 02: a script for many processes."""

import random
import warnings
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from graders.grading.answer import AnswerFunction
from graders.units.gpu import HOST, Gpu, gpu, on_host, plain
from graders.units.hashing import hashes_salted
from graders.units.unit_02.numbered import Descent, Numbered, Samples
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
    on_gpu: bool,
    older: bool,
) -> TrainingReply:
    """How the answer trains a `Numbered` with these values on samples: inputs [N, 1 + F, 1] and labels [N].
    uphill: see `Descent`. on_gpu: the device is a GPU; if not, it is the processor. older: whether there are
    gradients already, from whatever was done with the model before.

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
    optimizer = Descent(model, rate, uphill)
    with torch.enable_grad(), Gpu([]) if on_gpu else nullcontext(), hashes_salted(answer, dist.get_rank):
        options = epochs, batch_size, seed, gpu() if on_gpu else HOST
        history = answer(model, Samples(*samples), optimizer, *options)
    left = {parameter.device.type for parameter in model.parameters()}
    within = -1.0 - rank if model.drawn is None else model.drawn
    draws = within, float(torch.rand(())), random.random(), float(np.random.random())
    return TrainingReply(
        plain(history),
        [*map(on_host, model.parameters())],
        optimizer.batches,
        optimizer.sums,
        sorted(model.devices),
        sorted(left),
        draws,
        dist.is_initialized(),
    )
