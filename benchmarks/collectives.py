"""All-reduce on real processes: the reference ring and halving-doubling against Gloo's and Open MPI's.

`python -m benchmarks.collectives` prints the whole table and draws it, to build/collectives.png.

Our contestants and Gloo take turns in the same processes, in an order that is turned round each time, so that
what disturbs one disturbs all; each is compared with the Gloo call of its own turn, and the table shows the
quartiles of these ratios. Processor time, of all threads of a rank, changes less with the machine's load: it
says what a contestant costs, where the clock on a full machine says how long it waited for a core. Open MPI
has processes of its own, and its turn comes after.

The memory-copy limit. Of n bytes on p ranks, each rank sends V = 2 (p - 1) / p n bytes and receives as many.
Through loopback TCP every byte is copied twice, by the sender from its tensor into the kernel's buffers and
by the receiver out of them: 2 V a rank. Half of what arrives is added, and an addition reads two numbers and
writes one where a copy reads one and writes one: 1.5 times V / 2. Together that is the work of copying 2.75 V
a rank, at the speed of a copy while all ranks copy. What stays in a cache is faster than this limit, and Open
MPI, where a rank may read another's memory, copies once.

On two cores the quickest of ours took 0.75 to 1.35 times as long as Gloo's own all-reduce from 1 MB up,
seldom less than Gloo at 16 MB and more: both wait for the same kernel to copy the same bytes. Segments of
half a megabyte to eight, buffers that are kept from call to call, receives posted before sends, sums that
come back in one piece, and chunks exchanged by everyone with everyone changed nothing that the next run did
not take back.

During Gloo's all-reduce of 64 MB the two cores were idle for a quarter of the time with two processes, where
one thread of Gloo's in each moves all that comes and goes, and for a tenth at most with four. So two rings
at once, each with a half, a group and a thread of its own, as NCCL has channels, gain where cores are left
over: in plain processes they took 0.81 to 1.02 of Gloo's time with two, and 0.98 to 1.16 with four.

From 4 MB up, the cheapest of ours took 1.6 to 4.1 times the processor time of its copies.
In a profile of the ring at 64 MB in plain processes, the two copies and the addition were roughly a quarter.
Most of the rest was the kernel's: page faults of the fresh buffer, which a launch's larger pages make rare,
memory for packets in flight, and waking whoever waits for them.

Longer than other modules: what was found is told above, where the next who measures reads it.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.measure import Row, times_faster
from benchmarks.solutions import solution_of
from course_lib import launch
from course_lib.figures.plots import draw_lines, legend_beside
from course_lib.figures.style import figure_png, new_figure
from course_lib.launch.mpi import mpi_missing, mpirun
from tests.answers import right_answers

SOLUTION = Path(__file__).parents[1] / "solutions" / "07_collectives.py"
FIGURE = Path("build/collectives.png")
SIZES = tuple(4096 * 4**power for power in range(8))
"""Bytes: 4 KB to 64 MB."""
WORLDS = (2, 4)
GLOO = "Gloo"
COPIES = 2.75
"""Copies for each byte that a rank sends."""
COPIED_BYTES = 2**26
"""Beyond every cache."""


class Turn(NamedTuple):
    """Seconds of one call: by the clock, and of processor time."""

    wall: float
    processor: float


Turns = dict[str, list[list[Turn]]]


@dataclass(frozen=True)
class Race:
    """What was measured with one number of processes, on rank 0.

    ours: contestant -> for each size its turns; Gloo is one of them. mpi: the medians of Open MPI, or
    nothing. copies: bytes a second of processor time of a copy in memory, by one process alone and by all at
    once.
    noting: microseconds of processor time that a message takes a rank through a bare group, and through the
    recorded one of a launch.
    """

    ours: Turns
    mpi: list[float]
    copies: tuple[float, float]
    noting: tuple[float, float]

    def median(self, name: str, position: int) -> float:
        return statistics.median(turn.wall for turn in self.ours[name][position])

    def ratios(self, name: str, position: int) -> list[float]:
        """Quartiles of this contestant's time divided by Gloo's in the same turn."""
        turns = zip(self.ours[name][position], self.ours[GLOO][position], strict=True)
        return statistics.quantiles([mine.wall / gloo.wall for mine, gloo in turns], n=4)

    def processor(self, name: str, position: int) -> float:
        """Median processor time of a rank."""
        return statistics.median(turn.processor for turn in self.ours[name][position])


def rows() -> Iterator[Row]:
    """The best of ours against Gloo, from 1 MB up."""
    for ranks in WORLDS:
        race = measured(ranks)
        for position, nbytes in enumerate(SIZES):
            if nbytes < 2**20:
                continue
            ratio, ours = min((race.ratios(name, position)[1], name) for name in race.ours if name != GLOO)
            # At most 1.25 times Gloo's time from 1 MB, and less than it from 16 MB.
            aim = 1.0 if nbytes >= 2**24 else 0.8
            what = f"all-reduce of {nbytes >> 20} MB on {ranks} processes, {ours}"
            gloo = race.median(GLOO, position)
            yield times_faster(what, ratio * gloo, gloo, "dist.all_reduce (Gloo)", aim)


@cache
def reference() -> dict[str, Any]:
    """The answers of unit 07, by name."""
    return solution_of("07_collectives")


@cache
def measured(ranks: int) -> Race:
    """Let all contestants run."""
    solved = reference()
    right = {proof.name: proof.answer for proof in right_answers(SOLUTION.stem)}
    contestants = {
        "ring": solved["ring_all_reduce"],
        "halving-doubling": solved["halving_doubling_all_reduce"],
        "pipelined ring": right["pipelined"],
        GLOO: dist.all_reduce,
    }
    run = launch(_race, contestants, SIZES, ranks=ranks, on="processes", timeout=300)
    mpi = [] if mpi_missing() else mpirun(_mpi_times, SIZES, ranks=ranks, timeout=300)[0]
    return Race(run.results[0][0], mpi, *run.results[0][1:])


def _race(
    contestants: dict[str, Callable[[Tensor], Any]], sizes: Sequence[int]
) -> tuple[Turns, tuple[float, float], tuple[float, float]]:
    """What a rank does."""
    taken: Turns = {name: [] for name in contestants}
    for nbytes in sizes:
        turns = _turns(contestants, nbytes)
        for name in contestants:
            taken[name].append(turns[name])
    return taken, _copies(), _noting()


def _turns(contestants: dict[str, Callable[[Tensor], Any]], nbytes: int) -> dict[str, list[Turn]]:
    """Each contestant's turns, on zeros, whose sum stays what it is."""
    x = torch.zeros(nbytes // 4)
    turns: dict[str, list[Turn]] = {name: [] for name in contestants}
    order = list(contestants)
    for name in order:
        contestants[name](x)
    for _ in range(_repeats(nbytes)):
        for name in order:
            turns[name].append(_turn(partial(contestants[name], x)))
        order.reverse()
    return turns


def _turn(call: Callable[[], object]) -> Turn:
    """What a call takes on this rank, which all begin together."""
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return Turn(time.perf_counter() - wall, time.process_time() - processor)


def _copies() -> tuple[float, float]:
    """Bytes a second of processor time of a copy, by rank 0 alone and by all ranks at once: the fastest."""
    source, target = torch.ones(COPIED_BYTES // 4), torch.ones(COPIED_BYTES // 4)
    copy = partial(target.copy_, source)
    alone = [_turn(copy if dist.get_rank() == 0 else int).processor for _ in range(9)]
    together = [_turn(copy).processor for _ in range(9)]
    return COPIED_BYTES / min(alone), COPIED_BYTES / min(together)


def _noting(messages: int = 200) -> tuple[float, float]:
    """Microseconds of this thread's processor time for a send or receive: bare, and noted by the launch."""
    noted = dist.group.WORLD
    bare: list[float] = []
    with_notes: list[float] = []
    for _ in range(9):
        for group, times in ((noted._inner, bare), (noted, with_notes)):
            start = time.thread_time()
            for _ in range(messages):
                _pass_on(group)
            times.append((time.thread_time() - start) / (2 * messages) * 1e6)
    return min(bare), min(with_notes)


def _pass_on(group: Any) -> None:
    """Round the ring with an empty message."""
    rank, size, empty = dist.get_rank(), dist.get_world_size(), torch.empty(0)
    sending = group.send([empty], (rank + 1) % size, 0)
    group.recv([empty], (rank - 1) % size, 0).wait()
    sending.wait()


def _mpi_times(comm: Any, sizes: Sequence[int]) -> list[float]:
    """Medians of MPI's Allreduce, in place."""
    from mpi4py import MPI

    medians = []
    for nbytes in sizes:
        x, times = np.zeros(nbytes // 4, dtype=np.float32), []
        for _ in range(_repeats(nbytes)):
            comm.Barrier()
            start = time.perf_counter()
            comm.Allreduce(MPI.IN_PLACE, x)
            times.append(time.perf_counter() - start)
        medians.append(statistics.median(times))
    return medians


def _repeats(nbytes: int) -> int:
    return 51 if nbytes < 2**22 else 15


def copy_limit(race: Race, ranks: int, nbytes: int) -> float:
    """Seconds of processor time that a rank's copies take at least. See the module's docstring."""
    return COPIES * 2 * (ranks - 1) / ranks * nbytes / race.copies[1]


def show_all() -> None:
    """Print a table for each number of processes, and draw all of them."""
    figure, panels = new_figure(
        alt="Time of an all-reduce against its size, on logarithmic axes, with 2 and with 4 processes.",
        columns=len(WORLDS),
        width=12.0,
        height=4.5,
    )
    for ranks, axes in zip(WORLDS, panels, strict=True):
        race = measured(ranks)
        Console(width=100).print(_heading(race, ranks), _times(race), _ratios(race, ranks))
        draw_lines(axes, _curves(race, ranks), x="tensor (bytes)", y="time (ms)")
        axes.set(xscale="log", yscale="log", title=f"{ranks} processes")
    legend_beside(panels[-1])
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_bytes(figure_png(figure))
    print(f"Drawn to {FIGURE}")


def _heading(race: Race, ranks: int) -> str:
    alone, together = (speed / 1e9 for speed in race.copies)
    bare, noted = race.noting
    return (
        f"{ranks} processes on {_cores()} cores, load {os.getloadavg()[0]:.1f}. "
        f"A process alone copies {alone:.1f} GB in a second of processor time, {ranks} at once "
        f"{together:.1f} each. A message takes a rank {bare:.0f} µs of it, {noted:.0f} with the notes."
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _times(race: Race) -> Table:
    table = Table(title="Median milliseconds of an all-reduce")
    mpi = {"Open MPI": race.mpi} if race.mpi else {}
    for heading in ("size", *race.ours, *mpi):
        table.add_column(heading, justify="right")
    for position, nbytes in enumerate(SIZES):
        seconds = [race.median(name, position) for name in race.ours]
        seconds += [medians[position] for medians in mpi.values()]
        table.add_row(_size(nbytes), *(f"{each * 1e3:.3g}" for each in seconds))
    return table


def _ratios(race: Race, ranks: int) -> Table:
    table = Table(title="Divided by Gloo's: quartiles of the turns; processor time of a rank")
    contestants = [name for name in race.ours if name != GLOO]
    for heading in ("size", *contestants, "processor time / copies"):
        table.add_column(heading, justify="right")
    for position, nbytes in enumerate(SIZES):
        least = min(race.processor(name, position) for name in contestants)
        cells = [_cell(race, name, position) for name in contestants]
        table.add_row(_size(nbytes), *cells, f"{least / copy_limit(race, ranks, nbytes):.1f}")
    return table


def _size(nbytes: int) -> str:
    return f"{nbytes >> 10} KB" if nbytes < 2**20 else f"{nbytes >> 20} MB"


def _cell(race: Race, name: str, position: int) -> str:
    quartiles = " ".join(f"{ratio:.2f}" for ratio in race.ratios(name, position))
    return f"{quartiles}; {race.processor(name, position) / race.processor(GLOO, position):.2f}"


def _curves(race: Race, ranks: int) -> dict[str, tuple[Sequence[int], list[float]]]:
    """What the figure shows: sizes and milliseconds."""
    lines = {name: [race.median(name, position) for position in range(len(SIZES))] for name in race.ours}
    if race.mpi:
        lines["Open MPI"] = race.mpi
    turns_on_a_core = max(1.0, ranks / _cores())
    lines["copies in memory"] = [turns_on_a_core * copy_limit(race, ranks, nbytes) for nbytes in SIZES]
    return {name: (SIZES, [value * 1e3 for value in seconds]) for name, seconds in lines.items()}


if __name__ == "__main__":
    show_all()
