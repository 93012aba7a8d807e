"""Training steps on one device beside what the simulator's roofline says of them."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from course_lib import Cluster, launch
from course_lib.figures.style import bar_figure
from course_lib.models import Transformer, TransformerConfig, next_token_loss
from workbook.gpu.measure import Row, Table, dtype_name, median_seconds
from workbook.gpu.sizes import DTYPES, Net, Sizes

META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device reaches: FLOP/s of a large matrix product, bytes/s of a large copy, read and written."""

    flops: dict[torch.dtype, float]
    bandwidth: float


def rates(device: torch.device, sizes: Sizes) -> Rates:
    """Measure a device's rates, all that the roofline needs to know."""
    flops = {}
    for dtype in DTYPES:
        x = torch.randn(sizes.matrix, sizes.matrix, device=device).to(dtype)
        flops[dtype] = 2 * sizes.matrix**3 / median_seconds(partial(torch.mm, x, x), device, sizes.runs)
    source = torch.ones(sizes.copied // 4, device=device)
    seconds = median_seconds(partial(torch.empty_like(source).copy_, source), device, sizes.runs)
    return Rates(flops, 2 * source.nbytes / seconds)


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
        f"large copy. What is far above its prediction waits for the host, which queues its operations.",
        rows,
        figure,
    )


def _named(reached: Rates) -> dict[str, float]:
    return {dtype_name(dtype): flops for dtype, flops in reached.flops.items()}


def _row(net: Net, dtype: torch.dtype, device: torch.device, reached: Rates, sizes: Sizes) -> Row:
    model, batch = new_model(net, sizes.vocabulary, device, dtype), new_batch(net, device)
    seconds = median_seconds(partial(forward_backward, model, *batch), device, sizes.runs)
    cluster = Cluster(flops=reached.flops[dtype], memory_bandwidth=reached.bandwidth)
    shapes = new_model(net, sizes.vocabulary, META, dtype), *new_batch(net, META)
    predicted = launch(forward_backward, *shapes, ranks=1, cluster=cluster).seconds
    return {
        "model": str(net),
        "precision": dtype_name(dtype),
        "measured (ms)": 1e3 * seconds,
        "predicted (ms)": 1e3 * predicted,
        "measured / predicted": seconds / predicted,
    }


def new_model(net: Net, vocabulary: int, device: torch.device, dtype: torch.dtype) -> Transformer:
    """A Transformer of heads of 64, on a device."""
    heads = max(1, net.width // 64)
    config = TransformerConfig(net.layers, net.width, heads, vocabulary, context=net.tokens)
    with device:
        return Transformer(config).to(dtype)


def new_batch(net: Net, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and the tokens that should follow, [B, T]."""
    tokens_BT = torch.zeros(net.batch, net.tokens, dtype=torch.int64, device=device)
    return tokens_BT, tokens_BT.clone()


def forward_backward(model: Transformer, tokens_BT: Tensor, targets_BT: Tensor) -> None:
    """A step without its update."""
    next_token_loss(model(tokens_BT), targets_BT).backward()  # type: ignore[no-untyped-call]
    model.zero_grad()
