"""A transformer's block cut by hand beside the same block cut by DTensor: a step of each on two processes.

The two take turns in the same processes, so that what else the machine does hits both alike.
"""

import runpy
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.measure import Row, times_faster
from course_lib import launch
from course_lib.models import Transformer, TransformerConfig, next_token_loss
from graders.guest.run_cells import run_cells
from graders.submissions.read import read_submission

ROOT = Path(__file__).parents[1]
RANKS, STEPS, TURNS = 2, 5, 15
CONFIG = TransformerConfig(layers=1, width=256, heads=8, context=64)
SAMPLES = 4


def rows() -> Iterator[Row]:
    """The comparison of this module."""
    solved: dict[str, Any] = {"__name__": "solution"}
    run_cells(read_submission(ROOT / "solutions" / "06_tensor_parallel.py").cells, solved)
    halves = {name: solved[name] for name in ("parallel_attention", "parallel_mlp")}
    ways = {"own": partial(_cut("by_hand"), **halves), "dtensor": _cut("by_plan")}
    run = launch(take_turns, ways, ranks=RANKS, on="processes", timeout=300, quiet=True)
    own, dtensor = (max(times[way] for times in run.results) for way in ("own", "dtensor"))
    yield times_faster("a step of a block cut by hand, 2 processes", own, dtensor, "DTensor", 1)


def _cut(name: str) -> Callable[..., None]:
    """What cuts a model, of an example."""
    path = ROOT / "examples" / "tensor_parallel" / f"{name}.py"
    cut: Callable[..., None] = runpy.run_path(str(path))["cut"]
    return cut


def take_turns(ways: dict[str, Callable[[Transformer], None]]) -> dict[str, float]:
    """Way -> median seconds of a step on this rank, without the first turn, which allocates."""
    models = {name: _model(cut) for name, cut in ways.items()}
    tokens = torch.randint(CONFIG.vocabulary, (SAMPLES, CONFIG.context + 1))
    dist.broadcast(tokens, 0)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, model in models.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(STEPS):
                next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
            times[name] += [(time.perf_counter() - start) / STEPS] if turn else []
    return {name: statistics.median(of_way) for name, of_way in times.items()}


def _model(cut: Callable[[Transformer], None]) -> nn.Module:
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    cut(model)
    return model
