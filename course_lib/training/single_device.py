"""Training on a single device: everything round one step and one evaluation, which come in as arguments.

Shapes: B samples a batch, C channels, S pixels a side.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from course_lib.data import Dataset, Samples
from course_lib.notebook.widgets import LiveCurves

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
        for images, labels in DataLoader(
            self.samples, batch_size=self.batch_size, shuffle=self.shuffle, pin_memory=pinned
        ):
            inputs = images.to(self.device, non_blocking=True)
            targets = labels.to(self.device, non_blocking=True)
            yield (inputs if self.prepare is None else self.prepare(inputs)), targets


@dataclass(frozen=True, slots=True)
class History:
    """How a training went, epoch by epoch.

    train_losses: means over the epoch's samples, each taken before the update that it led to. seconds: all of
    it, evaluation included.
    """

    train_losses: list[float]
    test_losses: list[float]
    accuracies: list[float]
    seconds: float


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
    name: str,
) -> History:
    """Train for some epochs, with a progress bar and curves, which `LiveCurves.reload(name)` brings back.

    model: on the device of the batches. scheduler: stepped once an epoch.
    """
    history = History([], [], [], 0.0)
    started = time.perf_counter()
    with LiveCurves(name, total=epochs, unit="epoch", labels=_LABELS) as curves:
        for _ in range(epochs):
            train_loss = train_epoch(model, train, optimizer, train_step)
            scheduler.step()
            test_loss, accuracy = evaluate(model, test)
            history.train_losses.append(train_loss)
            history.test_losses.append(test_loss)
            history.accuracies.append(accuracy)
            curves.log(train_loss=train_loss, test_loss=test_loss, test_accuracy=100 * accuracy)
    return History(
        history.train_losses, history.test_losses, history.accuracies, time.perf_counter() - started
    )


_LABELS = {"loss": "mean cross-entropy (nats)", "accuracy": "accuracy (%)"}


def train_epoch(model: nn.Module, batches: Batches, optimizer: Optimizer, train_step: TrainStep) -> float:
    """One pass over the batches in training mode; returns the mean loss over its samples."""
    model.train()
    # On the device: fetching each loss would make every step wait for it.
    total = torch.zeros((), device=batches.device)
    for inputs, targets in batches:
        total += train_step(model, inputs, targets, optimizer) * len(targets)
    return total.item() / len(batches.samples)


def random_shift(images: Tensor) -> Tensor:
    """Move each image [B, C, H, W] by up to a pixel in both directions, black moving in; a new tensor.

    A digit stays the same digit, so there are nine training images for one: the simplest augmentation.
    """
    count, _, height, width = images.shape
    padded = functional.pad(images, (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2, count, 1), device=images.device)
    rows = torch.arange(height, device=images.device) + down
    columns = torch.arange(width, device=images.device) + right
    samples = torch.arange(count, device=images.device)[:, None, None]
    # Indices in the first, third and fourth place put the channels last: [B, H, W, C].
    return padded[samples, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def best_device() -> torch.device:
    """The accelerator that torch finds (a CUDA or ROCm GPU, Apple's MPS ...), else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator if accelerator is not None else torch.device("cpu")


def synchronize(device: torch.device) -> None:
    """Wait until the device has worked off its queue. A CPU has none: its calls return when they are done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def new_batches(data: Dataset, batch_size: int, device: torch.device) -> tuple[Batches, Batches]:
    """Training batches, shuffled and shifted, and test batches, as they are."""
    train = Batches(data.train, batch_size, device, shuffle=True, prepare=random_shift)
    return train, Batches(data.test, 512, device)
