"""How fast batches come: the course's loader beside PyTorch's usual one, and beside data that is there."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from course_lib.data import Samples
from course_lib.figures.plots import bar_figure
from course_lib.models import SmallCNN
from course_lib.training.device import synchronize
from course_lib.training.single_device import Batch, Batches, train_epoch
from workbook.gpu.measure import Row, Table
from workbook.gpu.sizes import Sizes

SIDE = 28


class SampleBySample(Batches):
    """A DataLoader as it is mostly written: it takes samples one by one, and stacks them."""

    def __iter__(self) -> Iterator[Batch]:
        pinned = self.device.type == "cuda"
        loader = DataLoader(self.samples, self.batch_size, shuffle=True, pin_memory=pinned)
        for images, labels in loader:
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


class Resident(Batches):
    """Samples that lie on the device already."""

    def __iter__(self) -> Iterator[Batch]:
        order = torch.randperm(len(self.samples), device=self.device)
        for indices in torch.split(order, self.batch_size):
            yield self.samples.batch(indices, self.device)


def epochs(device: torch.device, sizes: Sizes) -> Table:
    """Seconds of an epoch of a small network with each loader."""
    images = torch.rand(sizes.images, 1, SIDE, SIDE)
    samples = Samples(images, torch.arange(sizes.images) % 10)
    there = Samples(images.to(device), samples.labels.to(device))
    loaders = {
        "a sample at a time": (SampleBySample, samples),
        "Batches": (Batches, samples),
        "on the device": (Resident, there),
    }
    rows: list[Row] = []
    for size in sizes.batches:
        row: Row = {"batch": float(size)}
        for name, (kind, held) in loaders.items():
            row[f"{name} (s)"] = _epoch(kind(held, size, device, shuffle=True))
        rows.append(row)
    figure = bar_figure(
        {name: [float(row[f"{name} (s)"]) for row in rows] for name in loaders},
        names=[f"batches of {size}" for size in sizes.batches],
        y="an epoch (s)",
        alt="Seconds of an epoch with samples loaded one by one, with Batches, and with data on the device.",
    )
    return Table(
        "loader",
        "Loading",
        f"An epoch of SmallCNN on {sizes.images:,} grey images of {SIDE} x {SIDE}, in float32, loaded by "
        f"this process: sample by sample, by whole batches (the course's Batches), with all on the device.",
        rows,
        figure,
    )


def _epoch(batches: Batches) -> float:
    model = SmallCNN(size=SIDE).to(batches.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    _step(model, *next(iter(batches)), optimizer)
    synchronize(batches.device)
    began = time.perf_counter()
    train_epoch(model, batches, optimizer, _step)
    return time.perf_counter() - began


def _step(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()
