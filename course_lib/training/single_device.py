"""Training on a single device: batches, and an epoch round one step, which comes in as an argument.

Shapes: N samples, B of them in a batch, C channels, S pixels a side. The batches know the device; the model
is on it, and no other line asks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from course_lib.data import Dataset, Samples

Batch = tuple[Tensor, Tensor]
TrainStep = Callable[[nn.Module, Tensor, Tensor, Optimizer], Tensor]
"""(model, inputs, targets, optimizer) -> the loss before the update, without history."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Samples in batches, prepared and on the device: what a training loop iterates over.

    shuffle: in a new order each time. prepare: applied to a batch's images on the device.
    """

    samples: Samples
    batch_size: int
    device: torch.device
    shuffle: bool = False
    prepare: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        # Only pinned memory can be copied while the device computes.
        pinned = self.device.type == "cuda"
        order = RandomSampler(self.samples) if self.shuffle else SequentialSampler(self.samples)
        # Whole batches are indexed: stacking samples one by one takes longer than a GPU's step.
        whole = BatchSampler(order, self.batch_size, drop_last=False)
        for images_BCSS, labels_B in DataLoader(
            self.samples, sampler=whole, batch_size=None, pin_memory=pinned
        ):
            inputs_BCSS = images_BCSS.to(self.device, non_blocking=True)
            targets_B = labels_B.to(self.device, non_blocking=True)
            yield (inputs_BCSS if self.prepare is None else self.prepare(inputs_BCSS)), targets_B


def train_epoch(model: nn.Module, batches: Batches, optimizer: Optimizer, train_step: TrainStep) -> float:
    """One pass over the batches in training mode; returns the mean loss over its samples."""
    model.train()
    # On the device: fetching each loss would make every step wait for it.
    total = torch.zeros((), device=batches.device)
    for inputs, targets in batches:
        total += train_step(model, inputs, targets, optimizer) * len(targets)
    return total.item() / len(batches.samples)


def random_shift(images_BCSS: Tensor) -> Tensor:
    """Move each image by up to a pixel in both directions, black moving in; a new tensor.

    A digit stays the same digit, so there are nine training images for one: the simplest augmentation.
    """
    count, _, height, width = images_BCSS.shape
    device = images_BCSS.device
    padded = functional.pad(images_BCSS, (1, 1, 1, 1))
    down_B1, right_B1 = torch.randint(0, 3, (2, count, 1), device=device)
    rows_BS = torch.arange(height, device=device) + down_B1
    columns_BS = torch.arange(width, device=device) + right_B1
    samples_B11 = torch.arange(count, device=device)[:, None, None]
    # Indices in the first, third and fourth place put the channels last: [B, S, S, C].
    shifted_BSSC = padded[samples_B11, :, rows_BS[:, :, None], columns_BS[:, None, :]]
    return shifted_BSSC.permute(0, 3, 1, 2)


def new_batches(data: Dataset, batch_size: int, device: torch.device) -> tuple[Batches, Batches]:
    """Training batches, shuffled and shifted, and test batches, as they are."""
    train = Batches(data.train, batch_size, device, shuffle=True, prepare=random_shift)
    return train, Batches(data.test, 512, device)
