"""The simulator against real processes of this machine: all-reduces predicted from ping-pongs, and measured.

`python -m benchmarks.prediction` prints tables and draws them, to build/prediction.png.

Latency and bandwidth of a link are fitted to messages between two processes, the speed of an addition is
measured; nothing is fitted to the algorithms that are predicted. What the prediction cannot know: messages
between other ranks at the same time share the memory of one machine, and ranks beyond the number of cores
wait for a core.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.collectives import SIZES, WORLDS, reference
from course_lib import Cluster, Link, launch
from course_lib.figures.plots import draw_lines, legend_beside
from course_lib.figures.style import figure_png, new_figure

FIGURE = Path("build/prediction.png")
_REPEATS = 15


@cache
def this_machine() -> tuple[Link, float]:
    """The link between two processes here, and the bytes a second that an addition reads and writes."""
    run = launch(_ping_pong, SIZES, ranks=2, on="processes", timeout=300)
    samples, rate = run.results[0]
    alpha, beta = reference()["fit_alpha_beta"](samples)
    return Link(alpha, 1 / beta), rate


def _ping_pong(sizes: Sequence[int]) -> tuple[list[tuple[int, float]], float]:
    """(bytes, seconds) of one message: the fastest of several round trips, halved; and the addition rate."""
    me, samples = dist.get_rank(), []
    for nbytes in sizes:
        ball = torch.zeros(nbytes, dtype=torch.uint8)
        samples.append((nbytes, _fastest(lambda ball=ball: _round_trip(ball, me)) / 2))
    return samples, _addition_rate()


def _round_trip(ball: Tensor, me: int) -> None:
    for turn in (0, 1):
        if me == turn:
            dist.send(ball, 1 - me)
        else:
            dist.recv(ball, 1 - me)


def _addition_rate() -> float:
    """Of `x += y` on tensors too large for a cache: it reads both and writes one."""
    x, y = torch.zeros(2**24), torch.ones(2**24)
    return 3 * x.nbytes / _fastest(lambda: x.add_(y))


def _fastest(call: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls: whatever else the machine does can only add to it."""
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def algorithms() -> dict[str, Callable[[Tensor], Any]]:
    """The all-reduces that are predicted, from the answers of unit 07."""
    solved = reference()
    return {
        "ring": solved["ring_all_reduce"],
        "tree": lambda x: solved["broadcast_tree"](solved["reduce_tree"](x)),
        "halving-doubling": solved["halving_doubling_all_reduce"],
    }


def predicted(name: str, ranks: int) -> list[float]:
    """Simulated seconds for each of SIZES."""
    link, rate = this_machine()
    cluster = Cluster(devices_per_node=ranks, intra_node=link, memory_bandwidth=rate)
    function = algorithms()[name]
    return [launch(function, torch.zeros(nbytes // 4), cluster=cluster).seconds for nbytes in SIZES]


def measured(name: str, ranks: int) -> list[float]:
    """Seconds on real processes for each of SIZES: the fastest call, of its slowest rank."""
    run = launch(_times, algorithms()[name], SIZES, ranks=ranks, on="processes", timeout=300)
    return [max(times) for times in zip(*run.results, strict=True)]


def _times(function: Callable[[Tensor], Any], sizes: Sequence[int]) -> list[float]:
    seconds = []
    for nbytes in sizes:
        x = torch.zeros(nbytes // 4)
        tried = []
        for _ in range(_REPEATS):
            dist.barrier()
            start = time.perf_counter()
            function(x)
            tried.append(time.perf_counter() - start)
        seconds.append(min(tried))
    return seconds


def show_all() -> None:
    """Print a table for each number of processes, and draw predicted and measured curves."""
    link, rate = this_machine()
    print(
        f"Fitted: alpha = {link.latency * 1e6:.1f} µs, bandwidth = {link.bandwidth / 1e9:.2f} GB/s. "
        f"Measured: an addition moves {rate / 1e9:.1f} GB/s."
    )
    figure, panels = new_figure(
        alt="Predicted and measured time of ring, tree and halving-doubling against size, log-log.",
        columns=len(WORLDS),
        width=12.0,
        height=4.5,
    )
    for ranks, axes in zip(WORLDS, panels, strict=True):
        table = Table(title=f"{ranks} processes: milliseconds predicted, measured, and measured / predicted")
        table.add_column("bytes", justify="right")
        curves, columns = {}, []
        for name in algorithms():
            table.add_column(name, justify="right")
            pair = (predicted(name, ranks), measured(name, ranks))
            columns.append(pair)
            for kind, seconds in zip(("predicted", "measured"), pair, strict=True):
                curves[f"{name}, {kind}"] = (SIZES, [value * 1e3 for value in seconds])
        for position, nbytes in enumerate(SIZES):
            cells = (
                f"{ours[position] * 1e3:.3f}  {real[position] * 1e3:.3f}  "
                f"{real[position] / ours[position]:.2f}"
                for ours, real in columns
            )
            table.add_row(f"{nbytes:,}", *cells)
        Console(width=120).print(table)
        draw_lines(axes, curves, x="tensor (bytes)", y="time (ms)")
        axes.set(xscale="log", yscale="log", title=f"{ranks} processes")
    legend_beside(panels[-1])
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_bytes(figure_png(figure))
    print(f"Drawn to {FIGURE}")


if __name__ == "__main__":
    show_all()
