"""Training steps on one device beside what the simulator's roofline says of them."""

from dataclasses import dataclass
from functools import partial

import torch

from course_lib import Cluster, launch
from course_lib.cluster.device import Device
from course_lib.figures.plots import bar_figure
from course_lib.models import Transformer
from course_lib.published.on_h100 import META, forward_backward, new_batch, new_model
from workbook.gpu.measure import Row, Table, dtype_name, median_seconds
from workbook.gpu.sizes import DTYPES, Net, Sizes


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device reaches: FLOP/s of a large matrix product, bytes/s of a large copy, read and written; and
    seconds that an operation takes in a step with hardly anything to compute.
    """

    flops: dict[torch.dtype, float]
    bandwidth: float
    dispatch: float

    def device(self, dtype: torch.dtype, cuda: bool) -> Device:
        """A simulated device with these."""
        return Device(self.flops[dtype], self.bandwidth, self.dispatch, cuda_kernels=cuda)


def rates(device: torch.device, sizes: Sizes) -> Rates:
    """Measure a device's rates, all that the simulator needs to know."""
    flops = {}
    for dtype in DTYPES:
        x = torch.randn(sizes.matrix, sizes.matrix, device=device).to(dtype)
        flops[dtype] = 2 * sizes.matrix**3 / median_seconds(partial(torch.mm, x, x), device, sizes.runs)
    source = torch.ones(sizes.copied // 4, device=device)
    seconds = median_seconds(partial(torch.empty_like(source).copy_, source), device, sizes.runs)
    return Rates(flops, 2 * source.nbytes / seconds, _dispatch_seconds(device, sizes.runs))


def _dispatch_seconds(device: torch.device, runs: int) -> float:
    """What the host takes to queue one operation, from a step in which the device waits for it."""
    step = partial(forward_backward, _model(TINY, 256, device, torch.float32), *_batch(TINY, device))
    shapes = _model(TINY, 256, META, torch.float32), *_batch(TINY, META)
    # A host that takes a second an operation counts them.
    counting = Cluster(device=Device(dispatch_seconds=1.0))
    operations = launch(forward_backward, *shapes, ranks=1, cluster=counting).seconds
    return median_seconds(step, device, runs) / operations


TINY = Net(layers=4, width=64, batch=1, tokens=32)
"""Hardly anything to compute."""


def steps(device: torch.device, sizes: Sizes) -> Table:
    """Forward and backward of Transformers, measured and predicted."""
    reached = rates(device, sizes)
    rows = [_row(net, dtype, device, reached, sizes) for dtype in DTYPES for net in sizes.steps]
    names = [f"{dtype_name(dtype)}\nD={net.width}" for dtype in DTYPES for net in sizes.steps]
    words = ", ".join(f"{name} {flops / 1e12:.3g}" for name, flops in _named(reached).items())
    figure = bar_figure(
        {kind: [float(row[f"{kind} (ms)"]) for row in rows] for kind in ("measured", "predicted")},
        names=names,
        y="forward and backward (ms)",
        alt="Forward and backward of Transformers in two precisions, measured beside predicted.",
    )
    return Table(
        "steps",
        "Steps beside the simulator's prediction",
        f"Forward, loss and backward of a Transformer, and what a simulated device takes for them that has "
        f"this one's rates: {words} TFLOP/s in a large product, {reached.bandwidth / 1e9:,.0f} GB/s in a "
        f"large copy, and a host that takes {1e6 * reached.dispatch:.0f} microseconds to queue an operation.",
        rows,
        figure,
    )


def _named(reached: Rates) -> dict[str, float]:
    return {dtype_name(dtype): flops for dtype, flops in reached.flops.items()}


def _row(net: Net, dtype: torch.dtype, device: torch.device, reached: Rates, sizes: Sizes) -> Row:
    model, batch = _model(net, sizes.vocabulary, device, dtype), _batch(net, device)
    seconds = median_seconds(partial(forward_backward, model, *batch), device, sizes.runs)
    cluster = Cluster(device=reached.device(dtype, device.type == "cuda"))
    shapes = _model(net, sizes.vocabulary, META, dtype), *_batch(net, META)
    predicted = launch(forward_backward, *shapes, ranks=1, cluster=cluster).seconds
    return {
        "model": str(net),
        "precision": dtype_name(dtype),
        "measured (ms)": 1e3 * seconds,
        "predicted (ms)": 1e3 * predicted,
        "measured / predicted": seconds / predicted,
    }


def _model(net: Net, vocabulary: int, device: torch.device, dtype: torch.dtype) -> Transformer:
    return new_model(net.layers, net.width, net.tokens, vocabulary=vocabulary, device=device, dtype=dtype)


def _batch(net: Net, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return new_batch(net.batch, net.tokens, device)
