"""Horovod beside DistributedDataParallel and the unit's own optimizer: a step of each, and starting.

The three take turns in the same two processes, so that what else the machine does hits all of them alike.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Row, median_seconds, times_faster
from benchmarks.solutions import solution_of
from benchmarks.turns import in_turns, of_slowest
from course_lib import launch
from course_lib.beside import missing

RANKS, STEPS, TURNS = 2, 10, 15
WIDTHS = (64, 1024, 1024, 10)
"""1.1 million parameters: 4.5 MB of gradients a step."""


def rows() -> Iterator[Row]:
    """Every comparison of this module; none where Horovod is not installed."""
    if sentence := missing("horovod"):
        print(sentence)
        return
    step = step_seconds()
    yield times_faster(
        "a step by the unit's DistributedOptimizer", step["own"], step["horovod"], "Horovod", 0.5
    )
    yield times_faster("a step by DistributedDataParallel", step["ddp"], step["horovod"], "Horovod", 0.5)
    door = median_seconds(lambda: launch(one_sum, ranks=RANKS, on="horovod", quiet=True), runs=7)
    yield times_faster("launch, 2 ranks of Horovod", door, median_seconds(run_horovodrun, 3), "horovodrun", 5)
    yield times_faster("launch, 2 ranks of Horovod", door, median_seconds(run_horovod, 3), "horovod.run", 5)


def step_seconds() -> dict[str, float]:
    """Way -> median seconds of a training step, of the slower rank."""
    solved = solution_of("04_horovod")
    kept = os.environ.get("HOROVOD_TIMELINE")
    # A timeline's thread would take a core from the ranks.
    os.environ["HOROVOD_TIMELINE"] = ""
    try:
        with tempfile.TemporaryDirectory() as folder:
            meeting = str(Path(folder) / "meeting")
            optimizer = solved["DistributedOptimizer"]
            run = launch(take_turns, optimizer, meeting, ranks=RANKS, on="horovod", timeout=300, quiet=True)
    finally:
        os.environ.pop("HOROVOD_TIMELINE")
        if kept is not None:
            os.environ["HOROVOD_TIMELINE"] = kept
    return of_slowest(run.results)


def take_turns(own_optimizer: Any, meeting: str) -> dict[str, float]:
    """Way -> median seconds of a step on this rank. meeting: a file, for a group of torch's as well."""
    import horovod.torch as hvd

    store = dist.FileStore(meeting, hvd.size())
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())
    ways = {
        "horovod": _way(lambda o, m: hvd.DistributedOptimizer(o, named_parameters=m.named_parameters())),
        "own": _way(lambda o, m: own_optimizer(o, m.named_parameters())),
        "ddp": _way(lambda o, m: o, DistributedDataParallel),
    }
    return in_turns(ways, TURNS, STEPS)


def _way(
    wrap_optimizer: Callable[[Any, nn.Module], Any], wrap: Callable[[nn.Module], nn.Module] = nn.Sequential
) -> Callable[[], None]:
    torch.manual_seed(0)
    model = wrap(nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(WIDTHS))))
    optimizer = wrap_optimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model)
    return partial(_step, model, optimizer, torch.randn(32, WIDTHS[0]), torch.randint(WIDTHS[-1], (32,)))


def _step(model: nn.Module, optimizer: Any, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


# --- Starting


def one_sum() -> float:
    """What is launched."""
    import horovod.torch as hvd

    hvd.init()
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="one"))


def run_horovodrun() -> None:
    """The same function under horovodrun."""
    tool = Path(sys.executable).with_name("horovodrun")
    command = [str(tool), "--gloo", "-np", str(RANKS), sys.executable, "-m", "benchmarks.horovod"]
    subprocess.run(command, check=True, capture_output=True)


def run_horovod() -> None:
    """The same function by Horovod's own `run`, which leaves handlers of its own for signals."""
    import horovod

    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        horovod.run(one_sum, num_proc=RANKS, use_gloo=True)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    one_sum()
