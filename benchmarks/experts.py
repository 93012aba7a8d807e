"""A layer of experts beside a dense layer of as many operations a token: a step of each on two processes."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import Row, times_faster
from benchmarks.solutions import solution_of
from benchmarks.turns import in_turns, of_slowest
from course_lib import launch
from course_lib.models import MLP, TransformerConfig

ROOT = Path(__file__).parents[1]
RANKS, STEPS, TURNS = 2, 3, 11
WIDTH, INNER, EXPERTS, CHOICES, TOKENS = 256, 1024, 4, 2, 2048


def rows() -> Iterator[Row]:
    """The comparison of this module: gate, sorting and four all-to-alls may take as long as the products."""
    solved = solution_of("10_experts")
    layers = {name: solved[name] for name in ("Mixture", "ExpertParallelMLP")}
    run = launch(take_turns, layers, ranks=RANKS, on="processes", timeout=300, quiet=True)
    seconds = of_slowest(run.results)
    what = "a step of a layer of experts, 2 processes"
    yield times_faster(what, seconds["experts"], seconds["dense"], "a dense layer", 0.5)


def take_turns(layers: dict[str, Any]) -> dict[str, float]:
    """Way -> median seconds of a step on this rank."""
    torch.manual_seed(0)
    whole = layers["Mixture"](
        nn.Linear(WIDTH, EXPERTS, bias=False), [mlp(INNER // CHOICES) for _ in range(EXPERTS)], CHOICES
    )
    ways = {"experts": layers["ExpertParallelMLP"](whole), "dense": mlp(INNER)}
    x_ND = torch.randn(TOKENS, WIDTH, requires_grad=True)
    return in_turns({name: partial(_step, layer, x_ND) for name, layer in ways.items()}, TURNS, STEPS)


def _step(layer: nn.Module, x_ND: Tensor) -> None:
    layer(x_ND).square().mean().backward()


def mlp(inner: int) -> nn.Module:
    """An MLP with so many hidden units."""
    return MLP(TransformerConfig(width=WIDTH, heads=1, mlp_width=inner))
