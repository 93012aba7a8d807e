"""The pipeline's runtime beside torch.distributed.pipelining, and what timing a large schedule takes.

Both runtimes do the unit's 1F1B, take turns in the same two processes, and compute the same. A stage
computes some ten milliseconds for each message, as stages of real models do; with less, the recording of
calls shows.
"""

import operator
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from benchmarks.measure import Row, at_most, median_seconds, times_faster
from benchmarks.solutions import solution_of
from course_lib import launch
from course_lib.training.pipeline import Plan, Stage, cost, schedule_of

RANKS, MICRO_BATCHES, SAMPLES, TURNS = 2, 8, 32, 24
WIDTH, LAYERS = 1024, 4
LARGE = (64, 256)
"""Stages and micro-batches of the schedule that is timed."""


def rows() -> Iterator[Row]:
    """Every comparison of this module."""
    solved = solution_of("05_pipeline_parallel")
    plan: Plan = solved["one_f_one_b"]
    step = step_seconds(plan)
    what = f"a step of 1F1B, {RANKS} stages, {MICRO_BATCHES} micro-batches"
    torchs = statistics.median(step["torch"])
    # Of steps that follow each other: what else the machine does is nearly the same for both.
    ratio = statistics.median(map(operator.truediv, step["ours"], step["torch"]))
    yield times_faster(what, ratio * torchs, torchs, "torch's pipelining", 1 / 1.05)
    schedule = schedule_of(plan, *LARGE)
    seconds = median_seconds(lambda: cost(schedule, LARGE[1]), runs=3)
    yield at_most(f"timing a schedule of {LARGE[0]} stages, {LARGE[1]} micro-batches", seconds, 2.0)


def step_seconds(plan: Plan) -> dict[str, list[float]]:
    """Runtime -> seconds of each step, of the slower rank."""
    run = launch(take_turns, plan, ranks=RANKS, on="processes", timeout=300, quiet=True)
    return {name: [*map(max, *(times[name] for times in run.results))] for name in ("ours", "torch")}


def take_turns(plan: Plan) -> dict[str, list[float]]:
    """Runtime -> seconds of each step on this rank; each runtime is the first of every second pair."""
    torch.set_num_threads(1)
    ways = {"ours": _ours(plan), "torch": _torchs()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name in sorted(ways, reverse=turn % 2 == 0):
            dist.barrier()
            start = time.perf_counter()
            ways[name]()
            dist.barrier()
            # The first turn finds out what crosses the cut.
            times[name] += [time.perf_counter() - start] if turn else []
    return times


def _piece() -> nn.Module:
    torch.manual_seed(0)
    layers = ((nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))
    return nn.Sequential(*(module for pair in layers for module in pair))


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    samples = MICRO_BATCHES * SAMPLES
    return torch.randn(samples, WIDTH), torch.randn(samples, WIDTH)


def _ours(plan: Plan) -> Callable[[], None]:
    piece, (inputs, targets) = _piece(), _batch()
    stage = Stage([piece], functional.mse_loss)
    actions = list(plan(dist.get_rank(), RANKS, MICRO_BATCHES))

    def step() -> None:
        piece.zero_grad()
        stage.step(actions, inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES))

    return step


def _torchs() -> Callable[[], None]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    piece, (inputs, targets) = _piece(), _batch()
    rank = dist.get_rank()
    stage = PipelineStage(piece, rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=functional.mse_loss)

    def step() -> None:
        piece.zero_grad()
        schedule.step(*([inputs] if rank == 0 else []), **({"target": targets} if rank == RANKS - 1 else {}))

    return step
