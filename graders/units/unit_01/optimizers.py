"""The optimizer that `fit` gets."""

from typing import Any

import torch

from graders.units.unit_01.watched import Watched


def used_before(model: Watched, rates: dict[str, float]) -> torch.optim.Optimizer:
    """An optimizer that has taken a step along ones already, which are still in the gradients."""
    optimizer = torch.optim.SGD(model.parameters(), **rates)  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """An optimizer's learning rates, and all else that it and a scheduler have by groups of parameters."""
    return [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
