"""A transformer's block cut by hand beside the same block cut by DTensor: a step of each on two processes.

The two take turns in the same processes, so that what else the machine does hits both alike.
"""

import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.measure import Row, times_faster
from benchmarks.solutions import solution_of
from benchmarks.turns import in_turns, of_slowest
from course_lib import launch
from course_lib.models import Transformer, TransformerConfig, next_token_loss

ROOT = Path(__file__).parents[1]
RANKS, STEPS, TURNS = 2, 5, 15
CONFIG = TransformerConfig(layers=1, width=256, heads=8, context=64)
SAMPLES = 4


def rows() -> Iterator[Row]:
    """The comparison of this module."""
    solved = solution_of("06_tensor_parallel")
    halves = {name: solved[name] for name in ("parallel_attention", "parallel_mlp")}
    ways = {"own": partial(_cut("by_hand"), **halves), "dtensor": _cut("by_plan")}
    run = launch(take_turns, ways, ranks=RANKS, on="processes", timeout=300, quiet=True)
    seconds = of_slowest(run.results)
    what = "a step of a block cut by hand, 2 processes"
    yield times_faster(what, seconds["own"], seconds["dtensor"], "DTensor", 1)


def _cut(name: str) -> Callable[..., None]:
    """What cuts a model, of an example."""
    path = ROOT / "examples" / "tensor_parallel" / f"{name}.py"
    cut: Callable[..., None] = runpy.run_path(str(path))["cut"]
    return cut


def take_turns(ways: dict[str, Callable[[Transformer], None]]) -> dict[str, float]:
    """Way -> median seconds of a step on this rank."""
    models = {name: _model(cut) for name, cut in ways.items()}
    tokens = torch.randint(CONFIG.vocabulary, (SAMPLES, CONFIG.context + 1))
    dist.broadcast(tokens, 0)
    return in_turns({name: partial(_step, model, tokens) for name, model in models.items()}, TURNS, STEPS)


def _step(model: nn.Module, tokens: Tensor) -> None:
    next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()


def _model(cut: Callable[[Transformer], None]) -> nn.Module:
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    cut(model)
    return model
