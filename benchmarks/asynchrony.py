"""Asynchronous training simulated: 64 workers with 1,000 steps each of the unit's Downpour SGD."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Row, at_most
from course_lib import Cluster, launch
from graders.guest.run_cells import run_cells
from graders.submissions.read import read_submission

SOLUTION = Path(__file__).parents[1] / "solutions" / "08_asynchrony.py"
WORKERS, STEPS = 64, 1_000


def rows() -> Iterator[Row]:
    """Every measurement of this module."""
    solved: dict[str, Any] = {"__name__": "solution"}
    run_cells(read_submission(SOLUTION).cells, solved)
    seconds = launch(
        solved["downpour_sgd"],
        torch.zeros(100),
        gradient,
        STEPS,
        0.01,
        1,
        1,
        cluster=Cluster(devices_per_node=WORKERS + 1),
        timeout=600,
    ).wall_seconds
    yield at_most(f"Downpour SGD simulated, {WORKERS} workers, {STEPS:,} steps each", seconds, 20.0)


def gradient(w: Tensor) -> Tensor:
    """Next to nothing: what is timed are the messages."""
    return w - 1
