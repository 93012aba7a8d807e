"""Training on a single device: everything round one step and one evaluation, which come in as arguments.

Shapes: N samples, B of them in a batch, C channels, S pixels a side. The batches know the device; the model
is on it, and no other line asks.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from course_lib.data import Dataset, Samples

Batch = tuple[Tensor, Tensor]
TrainStep = Callable[[nn.Module, Tensor, Tensor, Optimizer], Tensor]
"""(model, inputs, targets, optimizer) -> the loss before the update, without history."""
Evaluate = Callable[[nn.Module, Iterable[Batch]], tuple[float, float]]
"""(model, loader) -> (mean loss, accuracy from 0 to 1)."""


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
        for images_BCSS, labels_B in DataLoader(
            self.samples, batch_size=self.batch_size, shuffle=self.shuffle, pin_memory=pinned
        ):
            inputs_BCSS = images_BCSS.to(self.device, non_blocking=True)
            targets_B = labels_B.to(self.device, non_blocking=True)
            yield (inputs_BCSS if self.prepare is None else self.prepare(inputs_BCSS)), targets_B


@dataclass(frozen=True, slots=True)
class FitResult:
    """How a training went, epoch by epoch.

    train_losses: means over the epoch's samples, each taken before the update that it led to. seconds: all of
    it, evaluation included.
    """

    train_losses: list[float]
    test_losses: list[float]
    accuracies: list[float]
    seconds: float


class Log(Protocol):
    """Is told an epoch's numbers: `LiveCurves.log` draws them, `print_epoch` prints them."""

    def __call__(self, *, train_loss: float, test_loss: float, test_accuracy: float) -> object: ...


def print_epoch(*, train_loss: float, test_loss: float, test_accuracy: float) -> None:
    """A line an epoch, for scripts."""
    print(f"training loss {train_loss:.4f}, test loss {test_loss:.4f}, test accuracy {test_accuracy:.2f} %")


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    train: Batches,
    test: Batches,
    *,
    epochs: int,
    train_step: TrainStep,
    evaluate: Evaluate,
    log: Log = print_epoch,
) -> FitResult:
    """Train for some epochs.

    model: on the device of the batches. scheduler: stepped once an epoch. log: called after each, the
    accuracy in percent.
    """
    train_losses: list[float] = []
    test_losses: list[float] = []
    accuracies: list[float] = []
    started = time.perf_counter()
    for _ in range(epochs):
        train_losses.append(train_epoch(model, train, optimizer, train_step))
        scheduler.step()
        test_loss, accuracy = evaluate(model, test)
        test_losses.append(test_loss)
        accuracies.append(accuracy)
        log(train_loss=train_losses[-1], test_loss=test_loss, test_accuracy=100 * accuracy)
    return FitResult(train_losses, test_losses, accuracies, time.perf_counter() - started)


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
