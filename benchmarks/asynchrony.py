"""Asynchronous training simulated: 64 workers with 1,000 steps each, of the unit's own functions."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.measure import Row, at_most
from benchmarks.solutions import solution_of
from course_lib import Cluster, launch

WORKERS, STEPS = 64, 1_000

TRAININGS = {
    "SSP, at most 8 steps ahead": ("ssp_sgd", (8,), 20.0),
    "Downpour SGD": ("downpour_sgd", (1, 1), 20.0),
}
"""Function, its last arguments, seconds allowed. Downpour has three messages a step, SSP two."""


def rows() -> Iterator[Row]:
    """Every measurement of this module."""
    solved = solution_of("08_asynchrony")
    for name, (function, arguments, seconds) in TRAININGS.items():
        run = launch(
            solved[function],
            torch.zeros(100),
            gradient,
            STEPS,
            0.01,
            *arguments,
            cluster=Cluster(devices_per_node=WORKERS + 1),
            timeout=600,
        )
        words = f"{name}, simulated, {WORKERS} workers, {STEPS:,} steps each"
        yield at_most(words, run.wall_seconds, seconds)


def gradient(w: Tensor) -> Tensor:
    """Next to nothing: what is timed are the messages."""
    return w - 1
