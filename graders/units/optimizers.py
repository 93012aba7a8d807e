"""The optimizer that drivers of several units hand to an answer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class PlainSGD(torch.optim.Optimizer):
    """Gradient descent with momentum and weight decay. Each parameter's state: "momentum" and "steps".

    An optimizer of torch's asks for its compiler, whose import takes longer than all the rest. So whatever of
    the base class does that is written out here.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.9, decay: float = 0.0
    ) -> None:
        self.taken = 0
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See the base class."""
        given = param_group["params"]
        own = [given] if isinstance(given, Tensor) else list(given)
        self.param_groups.append({**self.defaults, **param_group, "params": own})

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
        state = {numbers[parameter]: own for parameter, own in self.state.items()}
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
