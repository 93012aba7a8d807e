"""ZeRO's three stages by hand beside PyTorch's own: what a rank holds, and a step on two and four processes.

Shapes: N samples, W the width of all layers.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
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
from course_lib import launch, mark
from course_lib.runtime.communication.events import Kind
from course_lib.runtime.communication.memory import MemoryKind

LAYERS, WIDTH, SAMPLES = 6, 512, 1024
"""A thousand samples, as a GPU has thousands of tokens: computing outweighs the messages, as it should."""
TURNS, STEPS = 9, 4
"""Several steps of one way in a row: as in training, a step finds in the caches what the last one left."""
LONGEST = 1.05
"""A step by hand may take so many times the other's."""
LARGEST = 1.3
"""And so many times the other's bytes: what is laid end to end by hand is laid there once more."""

OTHERS = {
    "stage 1": "ZeroRedundancyOptimizer",
    "stage 2": "fully_shard, weights kept",
    "stage 3": "fully_shard",
}
ADAM_BYTES = 4
"""What Adam keeps for a parameter beside 2 bytes of weight and 2 of gradient; float32 doubles all three."""
BEGINS = "the second step begins"
STATES = (MemoryKind.PARAMETERS, MemoryKind.GRADIENTS, MemoryKind.OPTIMIZER)
Step = Callable[[Tensor], None]


def rows() -> Iterator[Row]:
    """Bytes of a rank in a step, and seconds of a step on two and on four processes."""
    solved = solution_of("09_memory")
    names = ("flat", "FullyShardedUnit", "ShardedOptimizer", "ShardedGradients", "prefetch")
    pieces = {name: solved[name] for name in names}
    yield from _of_memory(pieces, solved["zero_memory"], ranks=4)
    for ranks in (2, 4):
        for stage, other in OTHERS.items():
            # In processes of their own: other models' memory would lie between those of these two.
            run = launch(take_turns, pieces, stage, ranks=ranks, on="processes", timeout=600, quiet=True)
            seconds = of_slowest(run.results)
            what = f"a step of ZeRO's {stage} by hand, {ranks} processes"
            reached = seconds[stage] <= LONGEST * seconds[other]
            yield Row(
                what, seconds[stage], seconds[other], other, f"at most {LONGEST} times as long", reached
            )


# --- Memory


def _of_memory(pieces: Mapping[str, Any], zero_memory: Any, ranks: int) -> Iterator[Row]:
    """Of each stage the model states beside the formula, and all that a rank holds beside PyTorch's."""
    numbers = (LAYERS + 1) * (WIDTH * WIDTH + WIDTH)
    unit = 4 * numbers // (LAYERS + 1)
    shard = 4 * numbers // ranks
    for number, (stage, other) in enumerate(OTHERS.items(), 1):
        held, everything = _peaks(pieces, stage, ranks)
        _, of_other = _peaks(pieces, other, ranks)
        formula = 2 * zero_memory(numbers, ranks, number, state_bytes=ADAM_BYTES)
        # A copy of the shard, which Adam changes, and its gradient; and a layer that is under way.
        reached = held <= formula + 2 * shard + 2 * unit
        what = f"model states of a rank in ZeRO's {stage} by hand, {ranks} ranks"
        yield Row(what, held, formula, "formula", "at most 2 shards and 2 layers more", reached, "B")
        what = f"the most that a rank holds in ZeRO's {stage} by hand, {ranks} ranks"
        aim = f"at most {LARGEST} times as much"
        yield Row(what, everything, of_other, other, aim, everything <= LARGEST * of_other, "B")


def _peaks(pieces: Mapping[str, Any], way: str, ranks: int) -> tuple[int, int]:
    """The most bytes of model states, and of all, that rank 0 holds in a second step of a few samples."""
    run = launch(two_steps, pieces, way, ranks=ranks, memory=True, quiet=True)
    own = [event for event in run.events if event.rank == 0]
    begin = next(place for place, each in enumerate(own) if each.kind is Kind.SPAN and each.op == BEGINS)
    held: dict[str, int] = {}
    states = everything = 0
    for place, event in enumerate(own):
        if event.kind is Kind.MEMORY:
            held[event.op] = event.nbytes
        if place >= begin:
            states = max(states, sum(held.get(kind, 0) for kind in STATES))
            everything = max(everything, sum(held.values()))
    return states, everything


def two_steps(pieces: Mapping[str, Any], way: str) -> None:
    """Two steps of one way; Adam's numbers come with the first."""
    step, x = _ways(pieces)[way](), torch.randn(8, WIDTH)
    step(x)
    mark(BEGINS)
    step(x)


# --- Time


def take_turns(pieces: Mapping[str, Any], stage: str) -> dict[str, float]:
    """Of a stage by hand and of PyTorch's, way -> median seconds of a step on this rank."""
    x, ways = torch.randn(SAMPLES, WIDTH), _ways(pieces)
    return in_turns({name: partial(ways[name](), x) for name in (stage, OTHERS[stage])}, TURNS, STEPS)


def _ways(pieces: Mapping[str, Any]) -> dict[str, Callable[[], Step]]:
    """What makes a step of each stage, of the unit's solutions and of PyTorch."""
    return {
        "stage 1": partial(_first_stage, pieces["ShardedOptimizer"]),
        "stage 2": partial(_second_stage, pieces["flat"], pieces["ShardedGradients"]),
        "stage 3": partial(_third_stage, pieces["prefetch"]),
        "ZeroRedundancyOptimizer": _redundancy,
        "fully_shard, weights kept": partial(_fully, False),
        "fully_shard": partial(_fully, True),
    }


def _layers() -> list[nn.Module]:
    """The same wherever they are made."""
    torch.manual_seed(0)
    inner = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    return [*inner, nn.Linear(WIDTH, WIDTH)]


def _first_stage(sharded_optimizer: Any) -> Step:
    model = nn.Sequential(*_layers())
    return partial(_step, model, sharded_optimizer(model.parameters(), torch.optim.Adam, lr=1e-3))


def _third_stage(prefetch: Any) -> Step:
    units = prefetch(_layers())
    return partial(_step, units, torch.optim.Adam(units.parameters(), lr=1e-3))


def _second_stage(flat: Any, sharded_gradients: Any) -> Step:
    """With a bucket a layer, and Adam on this rank's part of each."""
    model = nn.Sequential(*_layers())
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
                dist.all_gather_into_tensor(whole, shard.detach())
                ends = [0, bucket[0].numel(), bucket[0].numel() + bucket[1].numel()]
                for parameter, (begin, end) in zip(bucket, pairwise(ends), strict=True):
                    parameter.copy_(whole[begin:end].view_as(parameter))

    return step


def _redundancy() -> Step:
    wrapped = DistributedDataParallel(nn.Sequential(*_layers()))
    options: dict[str, Any] = {"optimizer_class": torch.optim.Adam, "lr": 1e-3}
    return partial(_step, wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), **options))


def _fully(let_go: bool) -> Step:
    own = nn.Sequential(*_layers())
    for layer in own:
        fully_shard(layer, reshard_after_forward=let_go)
    fully_shard(own, reshard_after_forward=let_go)
    return partial(_step, own, torch.optim.Adam(own.parameters(), lr=1e-3))


def _step(model: nn.Module, optimizer: Any, x: Tensor) -> None:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
