"""Unit 02: the training loops round the student's pieces, what the graders draw, and what the text claims."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import Cluster, Link, Run, launch
from course_lib.data import load
from course_lib.training.data_parallel import (
    TORCH_DDP,
    Pieces,
    Replication,
    deal_epochs,
    local_batches,
    train,
    train_alone,
)
from course_lib.training.recipe import Recipe
from course_lib.training.results import TrainResult
from course_lib.training.step_timing import step_limits, timed_step
from graders.grading.registry import exercises
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer
from graders.units.unit_02.cases import filled
from tests.answers import right_answers

ANSWERS: dict[str, Callable[..., Any]] = {
    proof.exercise: proof.answer for proof in right_answers("02_data_parallel")
}

PIECES = Pieces(ANSWERS["shard_indices"], ANSWERS["global_accuracy"], ANSWERS["load_once"])


def broadcast_and_keep(model: nn.Module) -> nn.Module:
    ANSWERS["broadcast_parameters"](model, 0)
    return model


def in_buckets(nbytes: int) -> Replication:
    wrapper: Any = ANSWERS["BucketedDDP"]
    return Replication("BucketedDDP", partial(wrapper, bucket_bytes=nbytes), wrapper.finish)


FLAT = Replication("average_gradients", broadcast_and_keep, ANSWERS["average_gradients"])

REPLICATIONS = pytest.mark.parametrize(
    "replication", [FLAT, in_buckets(128 * 1024), TORCH_DDP], ids=lambda replication: replication.name
)


def trained(
    recipe: Recipe, replication: Replication, ranks: int, on: str = "simulated"
) -> tuple[list[TrainResult], TrainResult]:
    """The results of all ranks, and that of a single process on the same batches."""
    run = launch(train, recipe, replication, PIECES, ranks=ranks, on=on, quiet=True)
    length = len(load(recipe.dataset).train)
    dealt = launch(deal_epochs, PIECES.shard_indices, length, recipe.epochs, recipe.seed, ranks=ranks)
    return run.results, train_alone(recipe, dealt.results)


def assert_same_training(results: list[TrainResult], alone: TrainResult) -> None:
    # Invariant: replicas end equal bit by bit, and all ranks report the same result.
    assert len({result.fingerprint for result in results}) == 1
    assert all(result == results[0] for result in results)
    # Invariant: many workers take the single process's steps, to rounding.
    for seen, expected in zip(
        (results[0].losses, results[0].accuracies), (alone.losses, alone.accuracies), strict=True
    ):
        torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected), rtol=0, atol=1e-5)


@REPLICATIONS
def test_many_simulated_workers_train_as_one_process(replication: Replication) -> None:
    assert_same_training(*trained(Recipe(epochs=1), replication, ranks=4))


def test_real_processes_train_as_one_process() -> None:
    # Of half a batch some CPUs compute convolutions in another way, and 23 steps make 0.0002 of it.
    assert_same_training(*trained(Recipe(epochs=1), in_buckets(128 * 1024), ranks=4, on="processes"))


@REPLICATIONS
def test_empty_batches_take_part_and_contribute_nothing(replication: Replication) -> None:
    # 1,437 samples on 4 ranks in batches of 4 * 359: the second step has one sample, on one rank.
    results, alone = trained(Recipe(epochs=1, batch_size=4 * 359), replication, ranks=4)
    assert len(results[0].losses) == 2
    assert_same_training(results, alone)


def test_a_rank_count_that_divides_nothing() -> None:
    assert_same_training(*trained(Recipe(epochs=1), FLAT, ranks=3))


@pytest.mark.parametrize(("length", "ranks", "batch_size"), [(10, 4, 1), (9, 4, 2), (8, 4, 2), (3, 4, 5)])
def test_every_rank_makes_the_same_number_of_steps(length: int, ranks: int, batch_size: int) -> None:
    shards = torch.arange(length).tensor_split(ranks)
    batches = [local_batches(shard, length, batch_size, ranks) for shard in shards]
    # Invariant: equally many batches a rank, none too large, and together each sample once.
    assert len({len(of_rank) for of_rank in batches}) == 1
    assert all(len(batch) <= batch_size for of_rank in batches for batch in of_rank)
    assert torch.cat([batch for of_rank in batches for batch in of_rank]).tolist() == list(range(length))


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([4, 4, 4], 8, [8, 4]),
        ([4, 100, 4], 8, [4, 100, 4]),
        ([3, 3, 3], 8, [6, 3]),
        ([8], 1, [8]),
    ],
)
def test_a_bucket_is_closed_before_it_overflows(sizes: list[int], limit: int, expected: list[int]) -> None:
    buckets = filled(list(enumerate(sizes)), limit)
    assert [sum(sizes[number] for number in each) for each in buckets] == expected


def step_seconds(run: Run) -> float:
    start, end = step_limits(run)
    return end - start


def simulated_step(replication: Replication, latency: float) -> float:
    """The step that the unit shows: eight layers of width 256 on four nodes."""
    link = Link(latency=latency, bandwidth=2.5e9)
    cluster = Cluster(nodes=4, inter_node=link, flops=1e11, memory_bandwidth=1e11)
    return step_seconds(launch(timed_step, replication, 8, 256, 64, cluster=cluster))


@pytest.mark.parametrize(("latency", "best"), [(1e-6, 257), (20e-6, 514), (100e-6, 1028)])
def test_the_best_bucket_grows_with_the_latency(latency: float, best: int) -> None:
    # Buckets of one parameter, and of one, two, four and eight layers.
    seconds = {kib: simulated_step(in_buckets(kib * 1024), latency) for kib in (2, 257, 514, 1028, 2056)}
    assert min(seconds, key=lambda kib: seconds[kib]) == best


def test_buckets_hide_communication_that_a_flat_call_does_not() -> None:
    assert simulated_step(in_buckets(514 * 1024), 20e-6) < 0.9 * simulated_step(FLAT, 20e-6)


def test_the_learning_rate_grows_over_the_warm_up_and_stays() -> None:
    warm = Recipe(learning_rate=0.8, warmup_steps=3)
    assert [warm.rate_at(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert [Recipe(learning_rate=0.8).rate_at(step) for step in range(2)] == [0.8, 0.8]


def test_a_warm_up_changes_what_is_trained_from_the_first_step_on() -> None:
    # Invariant: the loss before the first step is the same, that before the second is not.
    losses = [
        train_alone(Recipe(batch_size=720, epochs=1, warmup_steps=warmup), [[torch.arange(1437)]]).losses
        for warmup in (0, 8)
    ]
    assert losses[0][0] == losses[1][0]
    assert losses[0][1] != losses[1][1]


def averages_every_gradient(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad or parameter.grad is not None:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def test_a_parameter_that_is_frozen_is_named_so() -> None:
    # Invariant: who averages whatever has a gradient reads which of the parameters should have been left out.
    exercise = exercises("02_data_parallel")["average_gradients"]
    rows = {
        each.criterion.name: each.seen
        for each in grade(exercise, kernel_answer(averages_every_gradient, exercise.name), Rng(1)).criteria
    }
    seen = rows["one call"]
    assert "the gradient of 1.weight, which is frozen, of rank 0 is float" in seen
