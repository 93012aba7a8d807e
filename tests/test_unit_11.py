"""Unit 11: hooks beside PyTorch's own and Horovod's, on simulated ranks and processes; what pays by formula
pays on the simulator.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.compression import by_gloo
from course_lib import Cluster, Link, launch
from course_lib.beside import missing
from tests.answers import solved

SOLVED = solved("11_compression")
STEPS = 5
ENGINES = pytest.mark.parametrize("on", ["simulated", "processes"])


def network() -> nn.Sequential:
    """A convolution and two linear layers, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 24), nn.Tanh(), nn.Linear(24, 10)
    )


def error(model: nn.Module, step: int, rank: int) -> Tensor:
    """A loss of samples that differ from step to step and from rank to rank."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(6, 2, 5, 5, generator=draw)).square().mean()


def flat_gradients(model: nn.Module) -> Tensor:
    """All gradients, end to end."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def with_hook(state: Any, hook: Callable[..., Any], bucket_cap_mb: float, plain_steps: int) -> list[Tensor]:
    """The gradients of each step under DDP; in the first steps they are all-reduced as they are."""
    model = DistributedDataParallel(network(), bucket_cap_mb=bucket_cap_mb)
    done: list[Tensor] = []

    def after_some(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        chosen = hook if len(done) >= plain_steps else default_hooks.allreduce_hook
        future: torch.futures.Future[Tensor] = chosen(state if chosen is hook else None, bucket)
        return future

    model.register_comm_hook(state, after_some)
    for step in range(STEPS):
        model.zero_grad()
        error(model, step, dist.get_rank()).backward()
        done.append(flat_gradients(model))
    return done


def both_kinds(fp16: Callable[..., Any], power: Any) -> dict[str, list[Tensor]]:
    """Gradients by the answers' hooks and by PyTorch's; half precision in several buckets."""
    seed = int(np.random.RandomState(0).randint(1_000_000_000))  # what PyTorch's own draws with
    state = powerSGD_hook.PowerSGDState(None, 3, start_powerSGD_iter=2, min_compression_rate=1)
    own = power(3, seed=seed)
    return {
        "your fp16": with_hook(None, fp16, 0.005, 0),
        "their fp16": with_hook(None, default_hooks.fp16_compress_hook, 0.005, 0),
        "your PowerSGD": with_hook(own, power.hook, 25, 2),
        "their PowerSGD": with_hook(state, powerSGD_hook.powerSGD_hook, 25, 0),
    }


@ENGINES
def test_hooks_have_the_gradients_of_torchs_own(on: Any) -> None:
    # Invariant: in every step, so with what is kept from step to step, the gradients on all ranks are those
    # of PyTorch's hooks; of half precision to rounding.
    run = launch(both_kinds, SOLVED["fp16_hook"], SOLVED["PowerSGD"], ranks=3, on=on, timeout=120, quiet=True)
    for found in run.results:
        for kind, tolerance in (("fp16", 2e-3), ("PowerSGD", 1e-4)):
            for seen, expected in zip(found[f"your {kind}"], found[f"their {kind}"], strict=True):
                near = tolerance * float(expected.abs().max())
                torch.testing.assert_close(seen, expected, rtol=0, atol=near, msg=kind)
    torch.testing.assert_close(run.results[1]["your PowerSGD"], run.results[0]["your PowerSGD"])


def in_channels_last() -> tuple[Tensor, Tensor, Tensor]:
    """Of a weight: what a bucket says its gradient is, the same by the weight's strides, and what it is."""
    convolution = nn.Conv2d(3, 4, 2, bias=False).to(memory_format=torch.channels_last)
    model, seen = DistributedDataParallel(convolution), []

    def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        (weight,), (gradient,) = bucket.parameters(), bucket.gradients()
        placed = gradient.as_strided(weight.shape, weight.stride(), gradient.storage_offset())
        seen.extend([gradient.clone(), placed.clone()])
        future: torch.futures.Future[Tensor] = default_hooks.allreduce_hook(None, bucket)
        return future

    model.register_comm_hook(None, hook)
    model(torch.randn(2, 3, 5, 5)).square().sum().backward()
    assert convolution.weight.grad is not None
    return seen[0], seen[1], convolution.weight.grad


def both_sums(answer: Callable[..., Tensor], store: str) -> tuple[Tensor, Tensor]:
    """The sum of this rank's pairs with the others', by the answer and by Gloo itself."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    draw = torch.Generator().manual_seed(rank)
    indices = torch.randint(50, (7 * rank,), generator=draw)
    values = torch.randn(7 * rank, generator=draw, dtype=torch.float64)
    gloo = dist.ProcessGroupGloo(dist.FileStore(store, ranks), rank, ranks)
    return answer(values, indices, 50), by_gloo(gloo, values, indices, 50)


def test_pairs_add_up_as_gloos_sparse_tensors(tmp_path: Path) -> None:
    # Invariant: where ranks have different numbers of pairs, one of them none, and places come several times,
    # the sum is that of Gloo's all-reduce of sparse tensors.
    given = SOLVED["sparse_all_reduce"], str(tmp_path / "store")
    for own, theirs in launch(both_sums, *given, ranks=3, on="processes", timeout=60, quiet=True).results:
        torch.testing.assert_close(own, theirs)
        assert own.any()


@ENGINES
def test_a_bucket_reads_gradients_row_after_row(on: Any) -> None:
    # Invariant: of a weight in channels_last bucket.gradients() has the right numbers in wrong places, as the
    # unit says, and as_strided finds these.
    ((said, placed, gradient),) = launch(in_channels_last, ranks=1, on=on).results
    assert not torch.equal(said, gradient)
    assert torch.equal(said.flatten().sort().values, gradient.flatten().sort().values)
    assert torch.equal(placed, gradient)


def by_horovod(compression: str, factor: float) -> Tensor:
    """The gradient of a step of this rank's samples after Horovod's exchange."""
    import horovod.torch as hvd

    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, compression),
    )
    (factor * error(model, 0, hvd.rank())).backward()
    optimizer.synchronize()
    return flat_gradients(model)


def by_answer(hook: Callable[..., Any], factor: float) -> Tensor:
    """The same by a hook of DDP."""
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, hook)
    (factor * error(model, 0, dist.get_rank())).backward()
    return flat_gradients(model)


@pytest.mark.xdist_group("horovodrun")
@pytest.mark.skipif(bool(missing("horovod")), reason=missing("horovod") or "it is there")
@pytest.mark.timeout(300)
def test_horovod_sends_as_many_bytes_in_half_precision_and_overflows_sooner() -> None:
    # Invariant: fp16_hook has Horovod's mean and its bytes, which are half of all; where the sum is no number
    # of float16 but the mean is, Horovod overflows and the hook does not.
    def sent(run: Any) -> int:
        return sum(event.nbytes for event in run.events if event.rank == 0 and event.op == "all_reduce")

    whole = launch(by_horovod, "none", 1.0, ranks=2, on="horovod", timeout=120)
    exact = whole.results[0]
    large = 40_000 / float(exact.abs().max())
    half, overflows = (
        launch(by_horovod, "fp16", factor, ranks=2, on="horovod", timeout=120) for factor in (1.0, large)
    )
    yours, fits = (
        launch(by_answer, SOLVED["fp16_hook"], factor, ranks=2, on=on, timeout=120)
        for factor, on in ((1.0, "processes"), (large, "simulated"))
    )
    assert 2 * sent(half) == 2 * sent(yours) == sent(whole) == 4 * exact.numel()
    near = 2e-3 * float(exact.abs().max())
    torch.testing.assert_close(half.results[0], exact, rtol=0, atol=near)
    torch.testing.assert_close(yours.results[0], half.results[0], rtol=0, atol=near)
    assert not overflows.results[0].isfinite().all()
    torch.testing.assert_close(fits.results[0], large * exact, rtol=0, atol=large * near)


def gathered(nbytes: int) -> None:
    """Everybody's message of so many bytes to everybody."""
    message = torch.empty(nbytes, dtype=torch.uint8, device="meta")
    dist.all_gather([torch.empty_like(message)] * dist.get_world_size(), message)


def test_what_pays_by_formula_is_sooner_on_the_simulator(rng: random.Random) -> None:
    # Invariant: on both sides of where they are equal, for few ranks and many, for large gradients and small.
    for _ in range(20):
        ranks, numbers = rng.choice((2, 3, 5, 8, 13)), rng.choice((60, 5_000, 10**6)) * 13 * 8
        link = Link(latency=rng.uniform(1e-6, 1e-4), bandwidth=rng.uniform(1e8, 1e10))
        network = Cluster(nodes=ranks, inter_node=link)
        whole = launch(dist.all_reduce, torch.empty(numbers, device="meta"), cluster=network).seconds
        for adds_up in (False, True):
            few = round(4 * numbers * (2 / ranks if not adds_up else 1) * rng.uniform(0.05, 0.9)) // 8 * 8
            shape = torch.empty(few // 4, device="meta")
            call, given = (dist.all_reduce, shape) if adds_up else (gathered, few)
            saved = whole - launch(call, given, cluster=network).seconds
            for seconds in (0.97 * saved, 1.03 * saved) if saved > 0 else (0.0,):
                arguments = 4 * numbers, few / (4 * numbers), seconds, ranks, link.latency, 1 / link.bandwidth
                told = SOLVED["pays_off"](*arguments, adds_up=adds_up)
                assert told == (seconds < saved), (arguments, adds_up, saved)
