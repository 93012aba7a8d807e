"""Starting ranks: simulated and on processes, against torchrun and torch.multiprocessing.spawn."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.measure import Row, at_most, median_seconds, times_faster
from benchmarks.programs import ring_passes, small_all_reduce
from course_lib import launch

RANKS = 4


def rows() -> Iterator[Row]:
    """Every comparison of this module."""
    torchrun = median_seconds(run_torchrun, runs=5)
    spawn = median_seconds(run_spawn, runs=5)
    simulated = median_seconds(lambda: launch(small_all_reduce, ranks=RANKS), runs=50)
    processes = median_seconds(lambda: launch(small_all_reduce, ranks=RANKS, on="processes"), runs=20)
    yield at_most("launch, 4 simulated ranks", simulated, 0.030)
    yield times_faster("launch, 4 simulated ranks", simulated, torchrun, "torchrun", 100)
    yield times_faster("launch, 4 warm processes", processes, torchrun, "torchrun", 15)
    yield times_faster("launch, 4 warm processes", processes, spawn, "torch.multiprocessing.spawn", 15)
    x = torch.ones(1024)
    ring = median_seconds(lambda: launch(ring_passes, x, ranks=256, timeout=600), runs=3, warm_up=0)
    yield at_most("ring all-reduce, 256 simulated ranks", ring, 5)


def run_torchrun() -> None:
    """The same function under torchrun; port 0 lets it find a free one."""
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={RANKS}", "-m", "benchmarks.programs"),
        ],
        check=True,
        capture_output=True,
    )


def run_spawn() -> None:
    """The same function under torch.multiprocessing.spawn."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_spawned, (os.path.join(folder, "rendezvous"),), nprocs=RANKS)


def _spawned(rank: int, rendezvous: str) -> None:
    store = dist.FileStore(rendezvous, RANKS)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store)
    small_all_reduce()
    dist.destroy_process_group()
