"""What is trained, and how: the same for one device, for any number of ranks, for a job that is resumed."""

from dataclasses import dataclass

import torch
from torch import nn

from course_lib.data import Dataset
from course_lib.models import SmallCNN


@dataclass(frozen=True, slots=True)
class Recipe:
    """A classifier's training, wherever it happens.

    batch_size: samples of one step, of all ranks together. seed: of the weights and of the shuffling.
    """

    dataset: str = "digits"
    epochs: int = 3
    batch_size: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    seed: int = 0


def build_model(data: Dataset, seed: int, device: torch.device) -> nn.Module:
    """The classifier of unit 01 for this data, on the device, with weights drawn from `seed`.

    They are drawn on the CPU, so that a seed means the same weights on every device.
    """
    channels, _, size = data.image_shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCNN(channels, len(data.classes), size).to(device)


def build_optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Stochastic gradient descent as the recipe says; its state lives where the parameters do."""
    return torch.optim.SGD(module.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)
