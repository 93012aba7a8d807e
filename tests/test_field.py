"""PyTorch's own functions as answers: they earn all points but those of rows that ask for more.

Such a row says in its hint that PyTorch's own does not do it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from graders.grading.exercise import Verdict
from graders.grading.registry import exercises
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer

Definition = TypeVar("Definition", bound=Callable[..., Any])


@dataclass(frozen=True)
class FieldAnswer:
    """An answer that hands its work to `library`, and the rows that it does not earn."""

    unit: str
    exercise: str
    library: str
    answer: Callable[..., Any]
    lacks: frozenset[str]


ANSWERS: list[FieldAnswer] = []


def field(
    unit: str, exercise: str, library: str, lacks: Sequence[str] = ()
) -> Callable[[Definition], Definition]:
    """The definition below answers an exercise by a library's name."""

    def register(answer: Definition) -> Definition:
        ANSWERS.append(FieldAnswer(unit, exercise, library, answer, frozenset(lacks)))
        return answer

    return register


@field("02_data_parallel", "shard_indices", "DistributedSampler", lacks=["any number of samples"])
def distributed_sampler(length: int, epoch: int, seed: int) -> Tensor:
    from torch.utils.data.distributed import DistributedSampler

    sampler: DistributedSampler[int] = DistributedSampler(range(length), seed=seed)
    sampler.set_epoch(epoch)
    return torch.tensor(list(sampler), dtype=torch.int64)


@field(
    "02_data_parallel",
    "BucketedDDP",
    "DistributedDataParallel",
    lacks=["never waits in backward", "starts equal", "no_sync", "buckets"],
)
class Replica(nn.Module):
    def __init__(self, model: nn.Module, bucket_bytes: int = 1_000_000) -> None:
        super().__init__()
        self.replica = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_bytes / 2**20)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.replica(*inputs, **options)

    def no_sync(self) -> AbstractContextManager[None]:
        return self.replica.no_sync()

    def finish(self) -> None:
        """Nothing: backward ends when all is averaged."""


@field("02_data_parallel", "broadcast_parameters", "_sync_module_states")
def sync_module_states(model: nn.Module, src: int = 0) -> None:
    from torch.distributed.utils import _sync_module_states

    _sync_module_states(model, dist.group.WORLD, 2**28, src, params_and_buffers_to_ignore=())


@field("08_asynchrony", "local_sgd", "PeriodicModelAverager", lacks=["layers that only some ranks train"])
def periodic_averager(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    period: int,
) -> list[float]:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    parameters = [p for p in model.parameters() if p.requires_grad]
    # It counts steps from 0: without these it would average after the first one already.
    averager = PeriodicModelAverager(period=period, warmup_steps=period - 1)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        averager.average_parameters(parameters)
    if len(batches) % period:
        PeriodicModelAverager(period=1).average_parameters(parameters)
    return losses


@field(
    "09_memory",
    "clip_grad_norm",
    "torch.nn.utils",
    lacks=["left alone", "ranks without gradients, and bfloat16"],
)
def total_norm_and_clip(shards: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    shards = [p for p in shards if p.grad is not None]
    gradients = [p.grad.float() for p in shards if p.grad is not None]
    square = torch.nn.utils.get_total_norm(gradients) ** 2 if gradients else torch.zeros(())
    dist.all_reduce(square)
    torch.nn.utils.clip_grads_with_norm_(shards, max_norm, square.sqrt())
    return square.sqrt()


@field("10_experts", "top_k_gate", "torch.topk", lacks=["ties", "any logits"])
def softmax_and_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    weights, experts = torch.softmax(logits, 1, dtype=torch.float32).topk(k)
    return (weights / weights.sum(1, keepdim=True)).to(logits.dtype), experts


@field("11_compression", "fp16_hook", "fp16_compress_hook", lacks=["no overflow"])
def fp16_compress(state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return fp16_compress_hook(state, bucket)


@field("12_hybrid", "mesh_coordinates", "torch.unravel_index", lacks=["refuses"])
def unravel_index(rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(each) for each in torch.unravel_index(torch.tensor(rank), shape))


@field("13_automatic", "reshard", "DTensor", lacks=["without a word", "what is sent", "x is left alone"])
def redistribute(x: Tensor, source: Any, target: Any, group: dist.ProcessGroup | None = None) -> Tensor:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    everyone = dist.group.WORLD
    assert everyone is not None
    mesh = DeviceMesh.from_group(group or everyone, "cpu")
    return DTensor.from_local(x, mesh, [source], run_check=False).redistribute(placements=[target]).to_local()


@pytest.mark.parametrize(
    "given", [pytest.param(each, id=f"{each.exercise}-{each.library}") for each in ANSWERS]
)
def test_what_the_field_uses_earns_all_but_what_asks_for_more(given: FieldAnswer) -> None:
    exercise = exercises(given.unit)[given.exercise]
    result = grade(exercise, kernel_answer(given.answer, exercise.name), Rng(1))
    seen = {each.criterion.name: f"{each.verdict.value}: {each.seen}" for each in result.criteria}
    failed = {each.criterion.name for each in result.criteria if each.verdict is Verdict.FAILED}
    assert failed == given.lacks, seen
    assert result.criteria[0].verdict is Verdict.PASSED
    silent = [row.name for row in exercise.rubric if row.name in failed and given.library not in row.hint]
    assert silent == []
