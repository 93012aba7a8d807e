"""Unit 05: schedules on processes and simulated ranks, beside PyTorch's own; what graders count as memory.

Shapes: B samples of a batch, W the width of all layers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.nn import functional

from course_lib import launch, per_rank
from course_lib.training.pipeline import Stage
from tests.answers import solved

STAGES, MICRO_BATCHES, WIDTH = 4, 6, 5
"""Six micro-batches on four stages: no multiple, for interleaved stages neither."""

SYNCHRONOUS = {"gpipe": 1, "one_f_one_b": 1, "zero_bubble": 1, "interleaved": 2}
"""Schedule -> chunks a stage."""

TORCHS = {
    "ScheduleGPipe": 1,
    "Schedule1F1B": 1,
    "ScheduleInterleaved1F1B": 2,
    "ScheduleInterleavedZeroBubble": 2,
}
"""The class of `torch.distributed.pipelining` -> chunks a stage."""


def layers() -> list[nn.Module]:
    """Eight, the same ones whoever calls: in float64, so that rounding is far below any mistake."""
    torch.manual_seed(3)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(8)]


def batch(samples: int = 2 * MICRO_BATCHES) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each [B, W]."""
    generator = torch.Generator().manual_seed(4)
    inputs, targets = torch.randn(2, samples, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, targets


def my_pieces(chunks: int) -> list[nn.Module]:
    """This rank's pieces of the eight layers."""
    inside = 8 // (STAGES * chunks)
    pieces = [nn.Sequential(*layers()[start : start + inside]) for start in range(0, 8, inside)]
    return pieces[dist.get_rank() :: STAGES]


def gradients_by_layer(pieces: list[nn.Module], chunks: int) -> dict[str, Tensor]:
    """This rank's gradients, by the name of the parameter in the whole model."""
    inside, found = 8 // (STAGES * chunks), {}
    for chunk, piece in enumerate(pieces):
        first = (chunk * STAGES + dist.get_rank()) * inside
        for name, parameter in piece.named_parameters():
            place, _, rest = name.partition(".")
            assert parameter.grad is not None
            found[f"{first + int(place)}.{rest}"] = parameter.grad
    return found


def stepped(plans: dict[str, Callable[..., Any]]) -> dict[str, dict[str, Tensor]]:
    """The gradients of a step by each schedule, with micro-batches of two samples, or of one to three."""
    inputs, targets = batch()
    sizes = {"even": [2] * MICRO_BATCHES, "uneven": [1, 3, 2, 2, 3, 1]}
    told = {}
    for name, plan in plans.items():
        for kind, split in sizes.items():
            pieces = my_pieces(SYNCHRONOUS[name])
            options = {"chunks": 2} if SYNCHRONOUS[name] == 2 else {}
            actions = plan(dist.get_rank(), STAGES, MICRO_BATCHES, **options)
            Stage(pieces, functional.mse_loss).step(actions, inputs.split(split), targets.split(split))
            told[f"{name}, {kind}"] = gradients_by_layer(pieces, SYNCHRONOUS[name])
    return told


def stepped_by_torch() -> dict[str, dict[str, Tensor]]:
    """The gradients of a step by each of PyTorch's schedules."""
    inputs, targets = batch()
    told = {}
    for name, chunks in TORCHS.items():
        pieces = my_pieces(chunks)
        stages = [
            pipelining.PipelineStage(
                piece, chunk * STAGES + dist.get_rank(), chunks * STAGES, torch.device("cpu")
            )
            for chunk, piece in enumerate(pieces)
        ]
        make: Any = getattr(pipelining, name)
        schedule = make(stages if chunks > 1 else stages[0], MICRO_BATCHES, loss_fn=functional.mse_loss)
        schedule.step(*((inputs,) if dist.get_rank() == 0 else ()), target=targets)
        told[name] = gradients_by_layer(pieces, chunks)
    return told


def all_stepped(plans: dict[str, Callable[..., Any]]) -> dict[str, dict[str, Tensor]]:
    """By every schedule, the student's and PyTorch's."""
    return {**stepped(plans), **stepped_by_torch()}


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_every_synchronous_schedule_has_the_gradients_of_the_whole_model(on):
    # Invariant: a schedule changes when something is computed and never what comes out, on every engine; and
    # PyTorch's runtime, with the same pieces, gets the same.
    inputs, targets = batch()
    model = nn.Sequential(*layers())
    functional.mse_loss(model(inputs), targets).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}

    plans = {name: solved("05_pipeline_parallel")[name] for name in SYNCHRONOUS}
    run = launch(all_stepped, plans, ranks=STAGES, on=on, timeout=120)
    assert set(run.results[0]) == {f"{name}, {kind}" for name in plans for kind in ("even", "uneven")} | set(
        TORCHS
    )
    for name in run.results[0]:
        seen = {key: gradient for rank in run.results for key, gradient in rank[name].items()}
        assert seen.keys() == expected.keys(), name
        for key, gradient in seen.items():
            torch.testing.assert_close(gradient, expected[key], rtol=1e-10, atol=1e-12, msg=f"{name}: {key}")


def by_hand(stage: nn.Module, run_stage: Callable[..., Any]) -> tuple[Tensor | None, list[Tensor | None]]:
    """One step of a stage by the answer to `run_stage`."""
    inputs, targets = batch(4)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    loss = run_stage(stage, inputs, targets if rank == last else None, functional.mse_loss)
    return loss, [parameter.grad for parameter in stage.parameters()]


def test_a_stage_by_hand_is_the_same_on_processes():
    # Invariant: loss, gradients and traffic of run_stage do not depend on the engine.
    answer = solved("05_pipeline_parallel")["run_stage"]
    runs = [
        launch(partial(by_hand, run_stage=answer), per_rank(layers()[:3]), ranks=3, on=on)
        for on in ("simulated", "processes")
    ]
    (simulated, processes) = runs
    torch.testing.assert_close(processes.results, simulated.results, rtol=1e-12, atol=1e-14)
    assert [simulated.traffic[rank].sent for rank in range(3)] == [160, 320, 160]
    assert [processes.traffic[rank].sent for rank in range(3)] == [160, 320, 160]
