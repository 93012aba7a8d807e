"""What a small training would save, drawn for the graders of unit 03."""

from typing import Any

import torch

from graders.grading.kit import Rng

State = dict[str, Any]


def draw_state(rng: Rng, step: int) -> State:
    """What a small training would save: nested, with tensors of several dtypes and a plain number."""
    return {
        "done": step,
        "model": {"weight": rng.normal(64, 48), "bias": rng.normal(48, dtype=torch.float64)},
        "random": rng.integers(0, 255, 400).to(torch.uint8),
    }
