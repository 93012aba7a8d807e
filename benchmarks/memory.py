"""ZeRO's three stages by hand beside PyTorch's own: a step of each on two and on four processes.

Shapes: N samples, W the width of all layers.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Row
from benchmarks.solutions import solution_of
from benchmarks.turns import in_turns, of_slowest
from course_lib import launch

ROOT = Path(__file__).parents[1]
LAYERS, WIDTH, SAMPLES = 6, 512, 1024
"""A thousand samples, as a GPU has thousands of tokens: computing outweighs the messages, as it should."""
TURNS = 7
LONGEST = 1.05
"""A step by hand may take so many times the other's."""

OTHERS = {
    "stage 1": "ZeroRedundancyOptimizer",
    "stage 2": "fully_shard, weights kept",
    "stage 3": "fully_shard",
}
Step = Callable[[Tensor], None]


def rows() -> Iterator[Row]:
    """Seconds of a step on two and on four processes."""
    solved = solution_of("09_memory")
    names = ("flat", "ShardedOptimizer", "ShardedGradients", "prefetch")
    pieces = {name: solved[name] for name in names}
    for ranks in (2, 4):
        run = launch(take_turns, pieces, ranks=ranks, on="processes", timeout=600, quiet=True)
        seconds = of_slowest(run.results)
        for stage, other in OTHERS.items():
            what = f"a step of ZeRO's {stage} by hand, {ranks} processes"
            reached = seconds[stage] <= LONGEST * seconds[other]
            yield Row(
                what, seconds[stage], seconds[other], other, f"at most {LONGEST} times as long", reached
            )


def take_turns(pieces: dict[str, Any]) -> dict[str, float]:
    """Way -> median seconds of a step on this rank."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)), nn.Linear(WIDTH, WIDTH)
    )
    ways = {**_by_hand(model, **pieces), **_torchs(model)}
    x = torch.randn(SAMPLES, WIDTH)
    return in_turns({name: partial(step, x) for name, step in ways.items()}, TURNS)


def _by_hand(model: nn.Sequential, flat: Any, **pieces: Any) -> dict[str, Step]:
    """A step of each stage, of the unit's solutions."""
    first, second, third = (copy.deepcopy(model) for _ in range(3))
    units = pieces["prefetch"]([*third])
    sharded = pieces["ShardedOptimizer"](first.parameters(), torch.optim.Adam, lr=1e-3)
    return {
        "stage 1": partial(_step, first, sharded),
        "stage 2": _second_stage(second, flat, pieces["ShardedGradients"]),
        "stage 3": partial(_step, units, torch.optim.Adam(units.parameters(), lr=1e-3)),
    }


def _second_stage(model: nn.Sequential, flat: Any, sharded_gradients: Any) -> Step:
    """With a bucket a layer, and Adam on this rank's part of each."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    trained = list(reversed(list(model.parameters())))
    buckets = [[bias, weight] for bias, weight in zip(trained[::2], trained[1::2], strict=True)]
    sharded = sharded_gradients(model, sum(parameter.nbytes for parameter in buckets[0]))
    shards = [nn.Parameter(flat(bucket, ranks).view(ranks, -1)[rank].clone()) for bucket in buckets]
    optimizer = torch.optim.Adam(shards, lr=1e-3)

    def step(x: Tensor) -> None:
        model(x).square().mean().backward()
        for shard, gradient in zip(shards, sharded.finish(), strict=True):
            shard.grad = gradient
        optimizer.step()
        with torch.no_grad():
            for bucket, shard in zip(buckets, shards, strict=True):
                whole = shard.new_empty(ranks * len(shard))
                dist.all_gather_single(whole, shard.detach())
                ends = [0, bucket[0].numel(), bucket[0].numel() + bucket[1].numel()]
                for parameter, (begin, end) in zip(bucket, pairwise(ends), strict=True):
                    parameter.copy_(whole[begin:end].view_as(parameter))

    return step


def _torchs(model: nn.Sequential) -> dict[str, Step]:
    """A step of each of PyTorch's own."""
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    options: dict[str, Any] = {"optimizer_class": torch.optim.Adam, "lr": 1e-3}
    steps: dict[str, Step] = {
        "ZeroRedundancyOptimizer": partial(
            _step, wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), **options)
        )
    }
    for name, let_go in (("fully_shard, weights kept", False), ("fully_shard", True)):
        own = copy.deepcopy(model)
        for layer in own:
            fully_shard(layer, reshard_after_forward=let_go)
        fully_shard(own, reshard_after_forward=let_go)
        steps[name] = partial(_step, own, torch.optim.Adam(own.parameters(), lr=1e-3))
    return steps


def _step(model: nn.Module, optimizer: Any, x: Tensor) -> None:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
