"""All-reduce on real processes: the reference ring and halving-doubling against Gloo's and Open MPI's.

`python -m benchmarks.collectives` prints the whole table and draws it, to build/collectives.png.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.measure import Row, times_faster
from course_lib import launch
from course_lib.figures import draw_lines, figure_png, legend_beside, new_figure
from course_lib.launch.mpi import mpi_missing, mpirun
from graders.cells import run_cells
from graders.submission import read_submission

SOLUTION = Path(__file__).parents[1] / "solutions" / "07_collectives.py"
FIGURE = Path("build/collectives.png")
SIZES = tuple(4096 * 4**power for power in range(8))
"""Bytes: 4 KB to 64 MB."""
WORLDS = (2, 4)

Times = dict[str, list[float]]
"""Contestant -> seconds for each size."""


def rows() -> Iterator[Row]:
    """The better of our two against Gloo, from 1 MB up."""
    for ranks in WORLDS:
        times = measured(ranks)
        for position, nbytes in enumerate(SIZES):
            if nbytes < 2**20:
                continue
            ours = min(times["ring"][position], times["halving-doubling"][position])
            # At most 1.25 times Gloo's time from 1 MB, and less than it from 16 MB.
            aim = 1.0 if nbytes >= 2**24 else 0.8
            what = f"all-reduce of {nbytes >> 20} MB on {ranks} processes"
            yield times_faster(what, ours, times["Gloo"][position], "dist.all_reduce (Gloo)", aim)


@cache
def measured(ranks: int) -> Times:
    """Seconds of every contestant for every size, the median of several calls on rank 0."""
    solved: dict[str, Any] = {"__name__": "solution"}
    run_cells(read_submission(SOLUTION).cells, solved)
    contestants = {
        "ring": solved["ring_all_reduce"],
        "halving-doubling": solved["halving_doubling_all_reduce"],
        "Gloo": dist.all_reduce,
    }
    run = launch(_race, contestants, SIZES, ranks=ranks, on="processes", timeout=300)
    times: Times = dict(run.results[0])
    if not mpi_missing():
        times["Open MPI"] = mpirun(_mpi_times, SIZES, ranks=ranks, timeout=300)[0]
    return times


def _race(contestants: dict[str, Callable[[Tensor], Any]], sizes: Sequence[int]) -> Times:
    """What a rank does. Contestants take turns, so that what disturbs one disturbs all; then a plain copy."""
    seconds: Times = {name: [] for name in [*contestants, "one copy in memory"]}
    for nbytes in sizes:
        calls = _calls(contestants, nbytes)
        tried: Times = {name: [] for name in calls}
        for _ in range(_repeats(nbytes)):
            for name, call in calls.items():
                dist.barrier()
                start = time.perf_counter()
                call()
                tried[name].append(time.perf_counter() - start)
        for name, times in tried.items():
            seconds[name].append(_median(times))
    return seconds


def _calls(contestants: dict[str, Callable[[Tensor], Any]], nbytes: int) -> dict[str, Callable[[], Any]]:
    """Each contestant on zeros, whose sum stays what it is; and a copy of the tensor."""
    x, target = torch.zeros(nbytes // 4), torch.ones(nbytes // 4)
    calls: dict[str, Callable[[], Any]] = {name: partial(call, x) for name, call in contestants.items()}
    return {**calls, "one copy in memory": partial(target.copy_, x)}


def _mpi_times(comm: Any, sizes: Sequence[int]) -> list[float]:
    """The same for MPI's Allreduce, in place."""
    from mpi4py import MPI

    seconds = []
    for nbytes in sizes:
        x, times = np.zeros(nbytes // 4, dtype=np.float32), []
        for _ in range(_repeats(nbytes)):
            comm.Barrier()
            start = time.perf_counter()
            comm.Allreduce(MPI.IN_PLACE, x)
            times.append(time.perf_counter() - start)
        seconds.append(_median(times))
    return seconds


def _repeats(nbytes: int) -> int:
    return 31 if nbytes < 2**22 else 9


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


def show_all() -> None:
    """Print a table for each number of processes, and draw all of them."""
    figure, panels = new_figure(
        alt="Time of an all-reduce against its size, on logarithmic axes, with 2 and with 4 processes.",
        columns=len(WORLDS),
        width=12.0,
        height=4.5,
    )
    for ranks, axes in zip(WORLDS, panels, strict=True):
        times = measured(ranks)
        table = Table(title=f"All-reduce on {ranks} processes, milliseconds")
        for heading in ("bytes", *times):
            table.add_column(heading, justify="right")
        for position, nbytes in enumerate(SIZES):
            cells = (f"{times[name][position] * 1e3:.3f}" for name in times)
            table.add_row(f"{nbytes:,}", *cells)
        Console().print(table)
        curves = {name: (SIZES, [value * 1e3 for value in values]) for name, values in times.items()}
        draw_lines(axes, curves, x="tensor (bytes)", y="time (ms)")
        axes.set(xscale="log", yscale="log", title=f"{ranks} processes")
    legend_beside(panels[-1])
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_bytes(figure_png(figure))
    print(f"Drawn to {FIGURE}")


if __name__ == "__main__":
    show_all()
