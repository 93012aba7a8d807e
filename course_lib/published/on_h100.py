"""The H100's measurements (`course_lib.published.h100`) on a simulated device with the card's own rates.

The tensors have shapes and no data, on one simulated rank, whose host queues operations for its device.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.cluster import presets
from course_lib.cluster.topology import Cluster
from course_lib.launch import launch
from course_lib.launch.run import Run
from course_lib.models import SmallCNN, Transformer, TransformerConfig, next_token_loss
from course_lib.published import h100
from course_lib.published.row import Row
from course_lib.runtime.communication.events import span
from course_lib.training.simulated_loader import SimulatedLoader

META = torch.device("meta")
VOCABULARY = 32_768
SOURCE = "one H100, 2026"


def new_model(
    layers: int, width: int, tokens: int, *, vocabulary: int, device: torch.device, dtype: torch.dtype
) -> Transformer:
    """A Transformer of heads of 64, on a device."""
    config = TransformerConfig(layers, width, max(1, width // 64), vocabulary, context=tokens)
    with device:
        return Transformer(config).to(dtype)


def new_batch(batch: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and the tokens that should follow, [B, T]."""
    tokens_BT = torch.zeros(batch, tokens, dtype=torch.int64, device=device)
    return tokens_BT, tokens_BT.clone()


def forward_backward(model: Transformer, tokens_BT: Tensor, targets_BT: Tensor) -> None:
    """A step without its update."""
    next_token_loss(model(tokens_BT), targets_BT).backward()  # type: ignore[no-untyped-call]
    model.zero_grad()


def two_steps(model: Transformer, tokens_BT: Tensor, targets_BT: Tensor) -> None:
    """The optimizer's state comes with the first."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        next_token_loss(model(tokens_BT), targets_BT).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


CARD = presets.one_h100()


def run_step(measured: h100.Step, cluster: Cluster = CARD) -> Run:
    """A step that was measured, on the simulated card or another."""
    return launch(forward_backward, *_shapes(measured), ranks=1, cluster=cluster)


def run_peak(measured: h100.Peak) -> Run:
    """The two steps whose peak was measured, with their memory followed."""
    return launch(two_steps, *_shapes(measured), ranks=1, cluster=CARD, memory=True)


def _shapes(measured: h100.Step | h100.Peak) -> tuple[Transformer, Tensor, Tensor]:
    dtype: torch.dtype = getattr(torch, measured.precision)
    model = new_model(
        measured.layers, measured.width, measured.tokens, vocabulary=VOCABULARY, device=META, dtype=dtype
    )
    return model, *new_batch(measured.batch, measured.tokens, META)


def run_small_cnn(images: int) -> Run:
    """Forward and backward of SmallCNN on grey images of 28 x 28."""
    with META:
        model = SmallCNN(channels=1, classes=10, size=28)
        batch = torch.zeros(images, 1, 28, 28), torch.zeros(images, dtype=torch.int64)

    def step(cnn: SmallCNN, images: Tensor, labels: Tensor) -> None:
        functional.cross_entropy(cnn(images), labels).backward()  # type: ignore[no-untyped-call]
        cnn.zero_grad()

    return launch(step, model, *batch, ranks=1, cluster=CARD)


PREPARING = {
    "a sample at a time": (0.1e-3, 9e-6),
    "whole batches": (0.1e-3, 2.2e-6),
    "on the GPU": (0.0, 0.0),
}
"""What a processor needs to prepare a batch of such images, in seconds: at least, and for each image.

Measured with torch's DataLoader on one core of another machine, an AMD EPYC, for the record has nothing of
the H100's host but what it needs to queue an operation.
"""
IMAGES = 60_000


def run_epoch(batch: int, way: str, workers: int = 0, steps: int = 20) -> Run:
    """Some steps of an epoch of SmallCNN: loaded, forward, backward, update by AdamW, loss added up.

    The record does not say which optimizer it was.
    """
    with META:
        model = SmallCNN(channels=1, classes=10, size=28)
        images, labels = torch.zeros(batch, 1, 28, 28), torch.zeros(batch, dtype=torch.int64)
    least, each = PREPARING[way]

    def train(cnn: SmallCNN) -> None:
        # As PyTorch does on a GPU: one operation for all parameters.
        optimizer = torch.optim.AdamW(cnn.parameters(), foreach=True)
        total = torch.zeros((), device=META)
        batches: Iterable[tuple[Tensor, ...]] = [(images, labels)] * steps
        if way != "on the GPU":
            batches = SimulatedLoader(batches, least + each * batch, workers)
        for number, (inputs, targets) in enumerate(batches):
            if way == "on the GPU":
                chosen = torch.zeros(batch, dtype=torch.int64, device=META)
                inputs, targets = inputs[chosen], targets[chosen]
            with span(f"step {number}"):
                optimizer.zero_grad()
                loss = functional.cross_entropy(cnn(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.detach() * len(targets)

    return launch(train, model, ranks=1, cluster=CARD)


def epoch_seconds(batch: int, way: str, workers: int = 0) -> float:
    """Of all images, from what one step more takes."""
    some, more = (run_epoch(batch, way, workers, steps).seconds for steps in (8, 24))
    return (more - some) / 16 * -(-IMAGES // batch)


def rows() -> Iterator[Row]:
    """All steps, epochs and peaks, measured and predicted."""
    for step in h100.STEPS:
        what = f"{step.layers} layers of {step.width}, {step.batch} x {step.tokens} tokens, {step.precision}"
        yield Row(SOURCE, what, "ms a step", step.measured, 1e3 * run_step(step).seconds)
    for images, (_, measured) in h100.SMALL_CNN.items():
        seconds = run_small_cnn(images).seconds
        yield Row(SOURCE, f"SmallCNN, {images:,} images", "ms a step", measured, 1e3 * seconds)
    for (batch, way), measured in h100.EPOCHS.items():
        what = f"SmallCNN, 60,000 images in batches of {batch:,}, {way}"
        yield Row(SOURCE, what, "ms an epoch", 1e3 * measured, 1e3 * epoch_seconds(batch, way))
    for number, peak in enumerate(h100.PEAKS):
        what = f"{peak.layers} layers of {peak.width}, {peak.batch} x {peak.tokens} tokens, {peak.precision}"
        allocated = peak.allocated - (h100.CUBLAS_WORKSPACE if number == 0 else 0)
        yield Row(SOURCE, what, "GiB at the peak", allocated / 2**30, run_peak(peak).memory.peak / 2**30)
