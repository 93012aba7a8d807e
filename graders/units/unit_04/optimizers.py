"""The optimizer that the drivers of unit 04 wrap, and what they ask of one that is wrapped round it."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from graders.units.models import gradients_of


class PlainSGD(torch.optim.Optimizer):
    """Gradient descent with momentum and weight decay. Each parameter's state: "momentum" and "steps".

    An optimizer of torch's asks for its compiler, whose import takes longer than all the rest. So whatever of
    the base class does that is written out here.
    """

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.9, decay: float = 0.0) -> None:
        self.taken = 0
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See the base class."""
        self.param_groups.append({**self.defaults, **param_group, "params": list(param_group["params"])})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; returns what the closure returns. `taken` counts them."""
        self.taken += 1
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, options: dict[str, Any]) -> None:
        state = self.state[parameter]
        gradient = parameter.grad + options["decay"] * parameter
        state["momentum"] = options["momentum"] * state.get("momentum", 0.0) + gradient
        state["steps"] = state.get("steps", 0) + 1
        parameter.sub_(state["momentum"], alpha=options["lr"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See the base class."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """See the base class; parameters are numbers, counted over all groups."""
        parameters = self._parameters()
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        groups = [
            {**group, "params": [numbers[parameter] for parameter in group["params"]]}
            for group in self.param_groups
        ]
        state = {numbers[parameter]: dict(own) for parameter, own in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See the base class."""
        parameters = self._parameters()
        self.state.clear()
        for number, own in state_dict["state"].items():
            self.state[parameters[number]] = {
                name: value.clone() if isinstance(value, Tensor) else value for name, value in own.items()
            }
        pairs = zip(self.param_groups, state_dict["param_groups"], strict=True)
        self.param_groups = [{**saved, "params": group["params"]} for group, saved in pairs]

    def _parameters(self) -> list[Any]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


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
