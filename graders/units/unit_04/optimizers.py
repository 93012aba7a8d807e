"""What the drivers of unit 04 ask of an optimizer that is wrapped round a plain one."""

from collections.abc import Callable
from typing import Any

import torch

from graders.units.models import gradients_of
from graders.units.optimizers import PlainSGD


def hands_on_state(optimizer: Any, plain: PlainSGD) -> bool:
    """Whether state_dict() is that of the plain optimizer, and load_state_dict() reaches it."""
    saved = optimizer.state_dict()
    same = saved["param_groups"] == plain.state_dict()["param_groups"] and len(saved["state"]) == 3
    saved["param_groups"][0]["lr"] = 0.5
    optimizer.load_state_dict(saved)
    return same and plain.param_groups[0]["lr"] == 0.5


def cleared(model: torch.nn.Module, optimizer: Any) -> list[int]:
    """How many gradients are 0 after zero_grad(set_to_none=False), and how many None after zero_grad()."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.zero_grad(set_to_none=False)
    zeros = sum(grad is not None and not grad.any() for grad in gradients_of(model))
    optimizer.zero_grad()
    return [zeros, sum(grad is None for grad in gradients_of(model))]


def refused(model: torch.nn.Module, optimizer: Any) -> str:
    """What zero_grad() raises, see `raised_by`, and whether it has cleared gradients all the same."""
    before = gradients_of(model)
    raised = raised_by(optimizer.zero_grad, RuntimeError)
    gone = sum(each is not None for each in before) - sum(each is not None for each in gradients_of(model))
    return f"{raised}, and cleared gradients" if raised and gone else raised


def raised_by(action: Callable[[], Any], kind: type[Exception] | None = None) -> str:
    """The class of what an action raises, by name, or `kind` if it is made from that; empty if nothing."""
    try:
        action()
    except NotImplementedError:
        raise
    except Exception as error:
        return (kind if kind and isinstance(error, kind) else type(error)).__name__
    return ""
