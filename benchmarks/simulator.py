"""The simulator's speed: messages a second with and without data, and all-reduces on thousands of ranks.

`python -m benchmarks.simulator` prints it as a table. Without data means meta tensors: ranks are recorded,
not threads.
"""

from collections.abc import Iterator
from functools import cache

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Row, at_most, median_seconds, times_faster
from benchmarks.programs import ring_steps
from benchmarks.solutions import solution_of
from course_lib import Cluster, launch
from course_lib.launch.run import Run

WORLDS = {4: 2000, 64: 500, 1024: 32}
"""Ranks -> steps round the ring."""
COLLECTIVES = {"ring": (1024, 15.0), "halving_doubling": (4096, 30.0)}
"""All-reduce of unit 07 -> ranks, and seconds that it may take."""
ELEMENTS = 1 << 18


def rows() -> Iterator[Row]:
    """Time a message, without data against with, and the large collectives."""
    for ranks in WORLDS:
        times_a_message = {device: 1 / messages_a_second(ranks, device) for device in ("meta", "cpu")}
        yield times_faster(
            f"a message among {ranks:,} simulated ranks, without data",
            times_a_message["meta"],
            times_a_message["cpu"],
            "with data",
            1,
        )
    for name, (ranks, limit) in COLLECTIVES.items():
        yield at_most(
            f"{name} all-reduce on {ranks:,} simulated ranks", carried_out(name).wall_seconds, limit
        )


@cache
def messages_a_second(ranks: int, device: str) -> float:
    """Messages that a run passes in a second of real time, its start included; the median of three runs."""
    x = torch.ones(1024, device=device)
    seconds = median_seconds(lambda: launch(ring_steps, x, WORLDS[ranks], ranks=ranks, timeout=600), runs=3)
    return ranks * WORLDS[ranks] / seconds


@cache
def carried_out(name: str) -> Run:
    """An all-reduce of unit 07 on many ranks, eight a node."""
    solved = solution_of("07_collectives")
    function, (ranks, _) = solved[f"{name}_all_reduce"], COLLECTIVES[name]
    cluster = Cluster(nodes=ranks // 8, devices_per_node=8)
    launch(function, torch.empty(64, device="meta"), ranks=2)  # torch imports what meta tensors need
    return launch(function, torch.empty(ELEMENTS, device="meta"), cluster=cluster, timeout=600)


def show_all() -> None:
    """Print both tables."""
    table = Table(title="Messages a second")
    for heading in ("ranks", "with data", "without"):
        table.add_column(heading, justify="right")
    for ranks in WORLDS:
        rates = (messages_a_second(ranks, device) for device in ("cpu", "meta"))
        table.add_row(f"{ranks:,}", *(f"{rate:,.0f}" for rate in rates))
    Console().print(table)
    table = Table(title=f"An all-reduce of {4 * ELEMENTS:,} bytes without data")
    for heading in ("", "ranks", "messages", "real time (s)", "virtual time (s)"):
        table.add_column(heading, justify="right")
    for name, (ranks, _) in COLLECTIVES.items():
        run = carried_out(name)
        numbers = (f"{run.traffic.messages:,}", f"{run.wall_seconds:.2f}", f"{run.seconds:.6f}")
        table.add_row(name, f"{ranks:,}", *numbers)
    Console().print(table)


if __name__ == "__main__":
    show_all()
