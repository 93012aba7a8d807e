"""How a training went, and what its final model is worth.

Shapes: N samples, B of them in a batch, C channels, S pixels a side, K classes.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.data import Samples

EVALUATION_BATCH = 512
"""Samples that are evaluated at a time: a whole shard's activations would not fit on a GPU."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a training went, the same on every rank.

    losses: the mean over each step's whole batch, all ranks' samples together. accuracies: on the test set,
    after each epoch. fingerprint: SHA-256 of the final parameters; equal exactly if every bit is. device: the
    kind that it ran on, such as "cpu" or "cuda".
    """

    losses: list[float]
    accuracies: list[float]
    fingerprint: str
    device: str


def count_correct(module: nn.Module, samples: Samples, indices_N: Tensor, device: torch.device) -> int:
    """How many of the samples at `indices_N` are classified correctly; the module's mode is restored."""
    was_training = module.training
    module.eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    with torch.no_grad():
        for indices_B in torch.split(indices_N, EVALUATION_BATCH):
            images_BCSS, labels_B = samples.batch(indices_B, device)
            logits_BK = module(images_BCSS)
            correct += (logits_BK.argmax(dim=1) == labels_B).sum()
    module.train(was_training)
    return int(correct)


def fingerprint(module: nn.Module) -> str:
    """SHA-256 of all parameters, in order."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
