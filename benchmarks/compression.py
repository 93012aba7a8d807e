"""PowerSGD by hand beside PyTorch's own hook: a step of DDP with each on two processes.

PyTorch has no hook that sends the largest numbers.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Row
from benchmarks.solutions import solution_of
from benchmarks.turns import in_turns, of_slowest
from course_lib import launch

ROOT = Path(__file__).parents[1]
WIDTH, LAYERS, SAMPLES = 512, 4, 32
RANKS, STEPS, TURNS = 2, 3, 9
LONGEST = 1.05
"""A step by hand may take so many times the other's."""

Step = Callable[[Tensor], None]


def rows() -> Iterator[Row]:
    """Seconds of a step on two processes."""
    solved = solution_of("11_compression")
    run = launch(take_turns, solved["PowerSGD"], ranks=RANKS, on="processes", timeout=600, quiet=True)
    seconds = of_slowest(run.results)
    own, other = seconds["by hand"], seconds["powerSGD_hook"]
    what, aim = "a step with PowerSGD by hand, 2 processes", f"at most {LONGEST} times as long"
    yield Row(what, own, other, "powerSGD_hook", aim, own <= LONGEST * other)


def take_turns(power_sgd: Any) -> dict[str, float]:
    """Way -> median seconds of a step on this rank."""
    state = power.PowerSGDState(None, 2, start_powerSGD_iter=2)
    own = power_sgd(2)
    steps = {
        "by hand": _with_hook(own, type(own).hook),
        "powerSGD_hook": _with_hook(state, power.powerSGD_hook),
    }
    x = torch.randn(SAMPLES, WIDTH)
    return in_turns({name: partial(step, x) for name, step in steps.items()}, TURNS, STEPS)


def _with_hook(state: Any, hook: Any) -> Step:
    """A step of a model whose gradients come in one bucket."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    model = DistributedDataParallel(layers, bucket_cap_mb=100)
    model.register_comm_hook(state, hook)

    def step(x: Tensor) -> None:
        model.zero_grad()
        model(x).square().mean().backward()

    return step
