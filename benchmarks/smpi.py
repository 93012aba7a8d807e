"""The simulator against SimGrid's SMPI, which runs C programs of MPI on the same star of links.

`python -m benchmarks.smpi [--large]` prints predicted times side by side, and the wall time of both; --large
adds 1,024 ranks.

SMPI's switches make it the plain Hockney model: no TCP ramp, no cross traffic, no time for computing (its
default model is calibrated to one cluster and differs by factors), and buffered messages that leave when they
are sent. A message there crosses the link of its sender and that of its receiver, so each has half of the
latency.

The two differ in one thing: transfers that share a card take turns here and share its bandwidth there. That
shows only where ranks send long messages through one card again and again, all in step (the last case):
taking turns sets them apart, and then one's latency passes while another's bytes do.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.collectives import reference
from benchmarks.measure import Row, times_faster
from benchmarks.programs import incast, pair_rounds, pairs, recursive_doubling
from course_lib import Cluster, Link, launch

SOURCE = Path(__file__).with_suffix(".c")
LINK = Link(latency=10e-6, bandwidth=12.5e9)
EAGER_LIMIT = 65_535
"""SMPI's: a message of 65,536 bytes or more waits for its receiver."""

_SWITCHES = (
    "--cfg=network/model:CM02",
    "--cfg=network/crosstraffic:0",
    "--cfg=network/TCP-gamma:0",
    "--cfg=smpi/simulate-computation:no",
    f"--cfg=smpi/send-is-detached-thresh:{EAGER_LIMIT + 1}",
    f"--cfg=smpi/async-small-thresh:{EAGER_LIMIT + 1}",
    "--log=root.thres:critical",
)
_PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="world" routing="Full">
  <cluster id="c" prefix="n" suffix="" radical="0-{last}"
    speed="1Gf" bw="{bandwidth:g}Bps" lat="{latency:g}s"/>
</zone></platform>
"""


@dataclass(frozen=True, slots=True)
class Case:
    """The same communication for both: a function of a tensor for us, a program and its switches for SMPI."""

    name: str
    ours: Callable[[Tensor], Any]
    program: str
    switches: tuple[str, ...] = ()
    extra_ranks: int = 0
    devices_per_node: int = 1
    """Ranks on a host; they share its one link."""


def cases() -> list[Case]:
    """All that is compared; `ours` are the reference answers of unit 07 where it asks for them."""
    solved = reference()
    return [
        Case("ring", solved["ring_all_reduce"], "allreduce", ("--cfg=smpi/allreduce:lr",)),
        Case("recursive doubling", recursive_doubling, "allreduce", ("--cfg=smpi/allreduce:rdb",)),
        Case(
            "Rabenseifner",
            solved["halving_doubling_all_reduce"],
            "allreduce",
            ("--cfg=smpi/allreduce:rab_rdb",),
        ),
        Case("incast", incast, "incast", extra_ranks=1),
        Case("pairs through one card", pairs, "pairs", devices_per_node=4),
        Case("the same ten times", pair_rounds, "rounds", devices_per_node=4),
    ]


@dataclass(frozen=True, slots=True)
class Compared:
    """Predicted and wall seconds of both."""

    ours: float
    theirs: float
    our_wall: float
    their_wall: float

    @property
    def deviation(self) -> float:
        """Of our prediction from theirs, as a part of theirs."""
        return self.ours / self.theirs - 1


def smpi_missing() -> str:
    """Why SMPI cannot run here, and what to install; empty if it can."""
    missing = [name for name in ("smpicc", "smpirun", "gcc") if shutil.which(name) is None]
    if not missing:
        return ""
    return f"{', '.join(missing)} not found. On Debian or Ubuntu: apt-get install libsimgrid-dev gcc"


def compare(case: Case, nbytes: int, ranks: int) -> Compared:
    """One case on `ranks` ranks (an incast has so many senders), with tensors of `nbytes`.

    Ours have a shape and no data, which times do not depend on; SMPI's programs have theirs.
    """
    total = ranks + case.extra_ranks
    cluster = Cluster(
        nodes=total // case.devices_per_node,
        devices_per_node=case.devices_per_node,
        inter_node=LINK,
        eager_limit=EAGER_LIMIT,
        cards_per_node=1,
    )
    start = time.perf_counter()
    ours = launch(case.ours, torch.empty(nbytes // 4, device="meta"), cluster=cluster, timeout=600).seconds
    our_wall = time.perf_counter() - start
    start = time.perf_counter()
    output = smpirun(case.program, nbytes, total, case.switches, case.devices_per_node).stdout
    their_wall = time.perf_counter() - start
    return Compared(ours, max(map(float, output.split())), our_wall, their_wall)


def smpirun(
    program: str, nbytes: int, ranks: int, switches: Sequence[str] = (), ranks_a_host: int = 1
) -> "subprocess.CompletedProcess[str]":
    """Run a program of smpi.c under SMPI, `ranks_a_host` ranks on a host. A deadlock has exit status 0."""
    with tempfile.TemporaryDirectory() as folder:
        platform, hosts = Path(folder) / "platform.xml", Path(folder) / "hosts"
        last = (ranks - 1) // ranks_a_host
        platform.write_text(
            _PLATFORM.format(last=last, bandwidth=LINK.bandwidth, latency=LINK.latency / 2), encoding="utf-8"
        )
        hosts.write_text("".join(f"n{rank // ranks_a_host}\n" for rank in range(ranks)), encoding="utf-8")
        return subprocess.run(
            [
                *("smpirun", "-np", str(ranks), "-platform", str(platform), "-hostfile", str(hosts)),
                *_SWITCHES,
                *switches,
                *(str(_compiled()), program, str(nbytes)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )


@cache
def _compiled() -> Path:
    """smpi.c as a program of SMPI, made anew in each process that asks.

    It takes its name when it is whole: another process may be running the one that was there.
    """
    folder = Path("build/smpi").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    made, program = folder / f"smpi-{os.getpid()}", folder / "smpi"
    subprocess.run(
        ["smpicc", "-O2", str(SOURCE), "-o", str(made)], check=True, capture_output=True, cwd=folder
    )
    return made.replace(program)


def rows() -> Iterator[Row]:
    """Backend time of the ring on 64 ranks, where we want to be level."""
    if smpi_missing():
        return
    _warm_up()
    compared = compare(cases()[0], 16_384, 64)
    yield times_faster(
        "ring of 16 KB, 64 simulated ranks", compared.our_wall, compared.their_wall, "SMPI", 1.0
    )


def _warm_up() -> None:
    """What only a process's first run pays for: imports, the compiler."""
    compare(cases()[0], 16_384, 8)


def show_all(*, large: bool = False) -> None:
    """Print every case for several sizes and numbers of ranks."""
    table = Table(title="Predicted by us and by SMPI, and the wall time of both")
    for heading in ("case", "ranks", "bytes", "ours", "SMPI", "deviation", "wall", "SMPI's wall", "ratio"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    _warm_up()
    for ranks in (8, 64, 1024) if large else (8, 64):
        for case in cases():
            for nbytes in (16_384, 4_194_304):
                if ranks == 1024 and (case.program != "allreduce" or nbytes > 16_384):
                    continue
                seen = compare(case, nbytes, ranks)
                table.add_row(
                    *(case.name, str(ranks), f"{nbytes:,}"),
                    *(f"{seconds * 1e6:.2f} µs" for seconds in (seen.ours, seen.theirs)),
                    f"{seen.deviation:+.3%}",
                    *(f"{seconds:.2f} s" for seconds in (seen.our_wall, seen.their_wall)),
                    f"{seen.their_wall / seen.our_wall:.2f}",
                )
    Console(width=120).print(table)


if __name__ == "__main__":
    if smpi_missing():
        sys.exit(smpi_missing())
    show_all(large="--large" in sys.argv)
