"""A data-parallel step on one to all devices of this machine."""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.figures.plots import bar_figure
from course_lib.training.device import rank_device
from workbook.gpu.measure import Row, Table, median_seconds
from workbook.gpu.sizes import Chain, Sizes


def scaling(devices: int, sizes: Sizes) -> Table:
    """Seconds of a step, with as much work a device each time."""
    chain = sizes.replicated
    counts = sorted({1 << power for power in range(devices.bit_length())} | {devices})
    found = {count: _measured(count, sizes) for count in counts}
    rows: list[Row] = [
        {
            "ranks": float(count),
            "device": kind,
            "step (ms)": 1e3 * seconds,
            "rows a second": count * chain.rows / seconds,
            "efficiency": found[1][1] / seconds,
        }
        for count, (kind, seconds) in found.items()
    ]
    figure = bar_figure(
        {"efficiency": [float(row["efficiency"]) for row in rows]},
        names=[f"{count} rank{'s' if count > 1 else ''}" for count in counts],
        y="seconds on one / seconds on all",
        alt="How many times the seconds of one rank's step are those of several ranks' step.",
    )
    return Table(
        "scaling",
        "Data parallelism",
        f"A step of DistributedDataParallel and SGD, in float32: {chain.layers} linear layers of "
        f"{chain.width} with ReLU, {chain.rows:,} rows a rank, a process a device.",
        rows,
        figure,
    )


def _measured(ranks: int, sizes: Sizes) -> tuple[str, float]:
    """The kind of device that the ranks took, and the seconds of the slowest."""
    run = launch(steps, sizes.replicated, sizes.runs, ranks=ranks, on="processes", timeout=120, quiet=True)
    return run.results[0][0], max(seconds for _, seconds in run.results)


def steps(chain: Chain, runs: int) -> tuple[str, float]:
    """On a rank: its kind of device, and the median of its steps in seconds."""
    device = rank_device()
    layers = [nn.Sequential(nn.Linear(chain.width, chain.width), nn.ReLU()) for _ in range(chain.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(chain.rows, chain.width, device=device)
    dist.barrier()
    return device.type, median_seconds(partial(_step, model, optimizer, x), device, runs)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
