"""Every training loop computes where it is told to, and nowhere else; ranks find their own GPU."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from course_lib import BadLaunch, Cluster, launch
from course_lib.data import Samples, load
from course_lib.launch import processes
from course_lib.runtime.processes.rank_environment import join_group
from course_lib.runtime.request import LaunchRequest
from course_lib.training import data_parallel, elastic
from course_lib.training.data_parallel import Pieces, Replication
from course_lib.training.device import rank_device
from course_lib.training.recipe import Recipe, build_model
from course_lib.training.results import EVALUATION_BATCH, count_correct
from course_lib.training.single_device import new_batches, train_epoch
from tests.newer_torch import SINCE_2_8

GPU = torch.device("meta")
"""Stands in for a GPU: tensors on it have shapes, and values that only `StandIn` makes up."""

MOVING = frozenset(
    {"index", "stack", "cat", "select", "slice", "split", "unbind", "view", "expand", "_to_copy", "detach"}
)
"""Operations that take a batch from data on the CPU, or a result to the CPU."""

RECIPE = Recipe(epochs=1, batch_size=256)


class StandIn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers what is read from the GPU with ones, and notes what is computed elsewhere."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elsewhere: list[str] = []
        self.computed = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, options = func.overloadpacket.__name__, kwargs or {}
        if name == "_local_scalar_dense" and args[0].device == GPU:
            return 1
        if name == "_to_copy" and args[0].device == GPU and options.get("device") == torch.device("cpu"):
            return torch.ones(args[0].shape, dtype=options.get("dtype") or args[0].dtype)
        result = func(*args, **options)
        given, made = tensors_of((args, options)), tensors_of(result)
        mixed = len({tensor.device for tensor in given if tensor.ndim}) > 1
        on_cpu = any(tensor.device != GPU and tensor.is_floating_point() for tensor in made)
        if name not in MOVING and (mixed or on_cpu):
            self.elsewhere.append(str(func))
        self.computed += any(tensor.device == GPU for tensor in made)
        return result


def tensors_of(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


@contextmanager
def unseen() -> Iterator[None]:
    """Loading and drawing weights is the CPU's work; nobody watches it."""
    with _disable_current_modes():
        yield


@pytest.fixture(autouse=True)
def prepared_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits")

    def built(*arguments: Any) -> nn.Module:
        with unseen():
            return build_model(*arguments)

    for module in (data_parallel, elastic):
        monkeypatch.setattr(module, "build_model", built)
        monkeypatch.setattr(module, "load", lambda name: digits)


def assert_all_on_the_gpu(elsewhere: list[str], computed: int) -> None:
    # Invariant: nothing is computed on the CPU, no operation mixes devices, and there was something to see.
    assert not elsewhere
    assert computed > 100


# --- the loops


def step(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_a_single_device_is_the_one_that_was_asked_for() -> None:
    digits = load("digits")
    model = build_model(digits, 0, GPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches, _ = new_batches(digits, 256, GPU)
    with StandIn() as seen:
        train_epoch(model, batches, optimizer, step)
    assert_all_on_the_gpu(seen.elsewhere, seen.computed)


def average(module: nn.Module) -> None:
    for parameter in module.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def on_this_rank(length: int, epoch: int, seed: int) -> Tensor:
    return torch.arange(dist.get_rank(), length, dist.get_world_size())


def data_parallel_watched() -> tuple[list[str], int]:
    pieces = Pieces(on_this_rank, lambda correct, total: correct / total, lambda load: load())
    replication = Replication("none", lambda model: model, average)
    with StandIn() as seen:
        result = data_parallel.train(RECIPE, replication, pieces, GPU)
    assert result.device == GPU.type
    return seen.elsewhere, seen.computed


@dataclass
class Unsaved:
    """Checkpoints that keep nothing but the devices of what they were given."""

    every: int = 1000

    def save(self, step: int, state: dict[str, Any]) -> None:
        assert {tensor.device for tensor in tensors_of(state["model"])} == {GPU}

    def restore(self, state: dict[str, Any]) -> int:
        return 0


def elastic_watched(folder: Path) -> tuple[list[str], int]:
    with StandIn() as seen:
        elastic.train(RECIPE, folder, Unsaved(), device=GPU)
    return seen.elsewhere, seen.computed


def test_data_parallel_ranks_compute_on_their_device() -> None:
    for elsewhere, computed in launch(data_parallel_watched, ranks=2, quiet=True).results:
        assert_all_on_the_gpu(elsewhere, computed)


@SINCE_2_8
def test_elastic_ranks_compute_on_their_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # DistributedDataParallel's own buckets need memory, which the stand-in has none of.
    monkeypatch.setattr(elastic, "DistributedDataParallel", lambda module: module)
    for elsewhere, computed in launch(elastic_watched, tmp_path, ranks=2, quiet=True).results:
        assert_all_on_the_gpu(elsewhere, computed)


# --- which device


@pytest.mark.parametrize(
    ("backends", "gpus", "wanted", "expected"),
    [
        ("cpu:gloo,cuda:nccl", 4, None, "cuda:2"),
        # A batch system that shows each rank its own GPU alone.
        ("cpu:gloo,cuda:nccl", 1, None, "cuda:0"),
        ("cuda:nccl", 4, None, "cuda:2"),
        ("cpu:gloo,cuda:gloo", 4, None, "cpu"),
        ("cpu:gloo,cuda:gloo", 4, "cuda", "cuda:2"),
        ("cpu:gloo,cuda:nccl", 4, "cpu", "cpu"),
        ("cpu:gloo,cuda:nccl", 0, None, "cpu"),
    ],
)
def test_a_rank_has_its_own_gpu_under_nccl_or_when_asked(
    backends: str, gpus: int, wanted: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[int] = []
    found = torch.device("cuda") if gpus else None
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda: backends)
    monkeypatch.setattr(dist, "get_rank", lambda: 6)
    monkeypatch.setenv("LOCAL_RANK", "2")
    device = rank_device(wanted)
    assert str(device) == expected
    assert current == ([device.index] if device.type == "cuda" else [])


def test_without_a_group_or_a_gpu_it_is_the_cpu() -> None:
    assert rank_device() == torch.device("cpu")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(BadLaunch, match='asked to train on "cuda", but torch finds no such device'):
        rank_device("cuda")


# --- which ranks see a GPU


@pytest.mark.parametrize(
    ("wanted", "ranks", "gpus", "backend", "hidden"),
    [
        (None, 2, 0, "gloo", True),
        (None, 2, 1, "gloo", True),
        (None, 2, 2, "cpu:gloo,cuda:nccl", False),
        (None, 1, 1, "cpu:gloo,cuda:nccl", False),
        # Asked for by name: the ranks share what there is.
        ("gloo", 2, 1, "gloo", False),
        ("nccl", 2, 2, "cpu:gloo,cuda:nccl", False),
    ],
)
def test_ranks_without_a_gpu_of_their_own_see_none(
    wanted: str | None, ranks: int, gpus: int, backend: str, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    plan = processes._plan(LaunchRequest(print, (), ranks, Cluster(devices_per_node=ranks), 60, 0, wanted))
    assert plan.backend == backend
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == ("-1" if hidden else "0,1")
    assert ("HIP_VISIBLE_DEVICES" in plan.environment) is hidden


def visible() -> list[int] | list[str]:
    """Numbers or names of the GPUs that torch would take, before it asks whether they are there."""
    return torch.cuda._parse_visible_devices()


@pytest.mark.parametrize(("backend", "expected"), [(None, []), ("gloo", [1])])
def test_what_is_hidden_is_hidden_from_torch(
    backend: str | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Invariant: ranks are forked from a process that has imported torch, and still read these variables anew.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert launch(visible, ranks=2, on="processes", backend=backend).results == [expected] * 2


@pytest.mark.parametrize(
    ("launcher", "gpus", "backend"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, 1, "gloo"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            2,
            "cpu:gloo,cuda:nccl",
        ),
        # srun may show each task its own GPU alone.
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"},
            1,
            "cpu:gloo,cuda:nccl",
        ),
    ],
)
def test_a_rank_of_any_launcher_sees_its_own_gpu_or_none(
    launcher: dict[str, str], gpus: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[str] = []
    environment = dict(launcher)
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", lambda name, timeout: joined.append(name))
    join_group()
    assert joined == [backend]
    assert (environment.get("CUDA_VISIBLE_DEVICES") == "-1") is (backend == "gloo")


def power_sgd() -> Tensor:
    """The gradient after two steps with torch's PowerSGD."""
    model = DistributedDataParallel(nn.Linear(4, 4))
    state = powerSGD_hook.PowerSGDState(None, 1, 2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(1, 4) * (dist.get_rank() + 1)).sum().backward()
    assert model.module.weight.grad is not None
    return model.module.weight.grad


def test_simulated_ranks_on_cpus_wait_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # Invariant: torch's PowerSGD waits for its tensors' device wherever the machine has a GPU, and torch
    # refuses to wait for a CPU: a simulated rank waits for its own device, and whoever is none as torch does.
    waited: list[Any] = []
    expected = launch(power_sgd, ranks=2).results[0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert torch.equal(launch(power_sgd, ranks=2).results[0], expected)
    launch(lambda: torch.cuda.synchronize("cuda:0"), ranks=1)
    assert not waited
    torch.cuda.synchronize("cuda:0")
    assert waited == ["cuda:0"]


def test_ranks_that_see_a_gpu_may_keep_their_tensors_on_the_cpu() -> None:
    # Invariant: the same on a process that has a GPU of its own; here one that only says so.
    def claimed() -> Tensor:
        torch.cuda.is_available = lambda: True
        return power_sgd()

    expected = launch(power_sgd, ranks=2).results[0]
    for gradient in launch(claimed, ranks=2, on="processes").results:
        torch.testing.assert_close(gradient, expected)


# --- evaluating in batches


def test_a_large_shard_is_evaluated_in_batches() -> None:
    # Invariant: no forward pass sees more than a batch; every sample counts once; the mode is restored.
    count = 2 * EVALUATION_BATCH + 3
    sizes: list[int] = []

    class Tenth(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            assert not self.training
            sizes.append(len(images))
            return functional.one_hot(images.flatten(1)[:, 0].long() % 10, 10)

    samples = Samples(torch.arange(count).float().reshape(-1, 1, 1, 1), torch.arange(count) % 10)
    module = Tenth()
    assert count_correct(module, samples, torch.arange(count), torch.device("cpu")) == count
    assert max(sizes) == EVALUATION_BATCH
    assert sum(sizes) == count
    assert module.training
