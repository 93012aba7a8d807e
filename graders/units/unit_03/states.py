"""What a small training would save, drawn for the graders of unit 03."""

from typing import Any

import torch
from torch import Tensor

from graders.grading.rng import Rng

State = dict[str, Any]


def draw_state(rng: Rng, step: int) -> State:
    """What a small training would save: nested, with tensors of several dtypes and a plain number."""
    return {
        "step": step,
        "model": {"weight": rng.normal(64, 48), "bias": rng.normal(48, dtype=torch.float64)},
        "random": rng.integers(0, 255, 400).to(torch.uint8),
    }


def same_state(seen: Any, expected: Any) -> bool:
    """Whether two nests of dictionaries are equal in every bit of every tensor, and in types."""
    if type(seen) is not type(expected):
        return False
    if isinstance(expected, Tensor):
        return seen.dtype == expected.dtype and seen.shape == expected.shape and torch.equal(seen, expected)
    if isinstance(expected, dict):
        return seen.keys() == expected.keys() and all(same_state(seen[k], expected[k]) for k in expected)
    return bool(seen == expected)
