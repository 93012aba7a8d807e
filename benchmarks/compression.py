"""PowerSGD and the largest numbers by hand beside PyTorch's own: a step of DDP with each on two processes.

PyTorch has no hook that sends the largest numbers, nor has Horovod a compression that does. What there is of
its own is the sum: Gloo's all-reduce of a sparse tensor. So both hooks choose by the same `top_k`, and one of
them has Gloo add up.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
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
RATIO = 0.01

Step = Callable[[Tensor], None]


def rows() -> Iterator[Row]:
    """Seconds of a step on two processes."""
    solved = solution_of("11_compression")
    own = {name: solved[name] for name in ("PowerSGD", "top_k", "sparse_all_reduce")}
    with tempfile.TemporaryDirectory() as folder:
        run = launch(take_turns, own, f"{folder}/store", ranks=RANKS, on="processes", timeout=600, quiet=True)
    seconds = of_slowest(run.results)
    for way, other in (("PowerSGD", "powerSGD_hook"), ("the largest 1 %", "Gloo's sparse all-reduce")):
        what, aim = f"a step with {way} by hand, {RANKS} processes", f"at most {LONGEST} times as long"
        yield Row(what, seconds[way], seconds[other], other, aim, seconds[way] <= LONGEST * seconds[other])


def take_turns(own: dict[str, Any], store: str) -> dict[str, float]:
    """Way -> median seconds of a step on this rank. own: the solutions. store: a file not there yet."""
    state = power.PowerSGDState(None, 2, start_powerSGD_iter=2)
    low = own["PowerSGD"](2)
    # Of its own: what ranks use as a rule takes no sparse tensors.
    gloo = dist.ProcessGroupGloo(dist.FileStore(store, RANKS), dist.get_rank(), RANKS)
    steps = {
        "PowerSGD": _with_hook(low, type(low).hook),
        "powerSGD_hook": _with_hook(state, power.powerSGD_hook),
        "the largest 1 %": _with_hook({}, of_the_largest(own["top_k"], own["sparse_all_reduce"])),
        "Gloo's sparse all-reduce": _with_hook({}, of_the_largest(own["top_k"], partial(by_gloo, gloo))),
    }
    x = torch.randn(SAMPLES, WIDTH)
    return in_turns({name: partial(step, x) for name, step in steps.items()}, TURNS, STEPS)


def by_gloo(group: dist.ProcessGroupGloo, values: Tensor, indices: Tensor, length: int) -> Tensor:
    """The sum over ranks of vectors that are 0 but in a few places, [length], by Gloo itself."""
    pairs = torch.sparse_coo_tensor(indices.unsqueeze(0).long(), values, (length,), check_invariants=False)
    group.allreduce([pairs]).wait()
    return pairs.to_dense()


def of_the_largest(top_k: Any, sparse_all_reduce: Any) -> Any:
    """A hook that sends the largest numbers of a bucket, and keeps the rest by the bucket's length."""

    def hook(errors: dict[int, Tensor], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        numbers = bucket.buffer()
        error = errors.setdefault(len(numbers), torch.zeros_like(numbers))
        total = sparse_all_reduce(*top_k(numbers, RATIO, error), len(numbers))
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(numbers.copy_(total / RANKS))
        return future

    return hook


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
