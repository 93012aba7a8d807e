"""The small models and the optimizer that the drivers of unit 04 build, and graders beside them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import mark


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
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})

    def _parameters(self) -> list[Any]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def load_values(tensors: Iterable[Tensor], values: Sequence[Tensor]) -> None:
    """Copy drawn values into a model's tensors, of the same shapes."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


class Normed(nn.Module):
    """A trainable layer, a batch norm with its buffers, a frozen layer, and a buffer outside the state
    dict.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("positions", torch.zeros(2, dtype=torch.float64), persistent=False)


def state_of(model: nn.Module) -> list[Tensor]:
    """Parameters, then buffers, each of its own shape."""
    return [*model.parameters(), *model.buffers()]


class _MarkInBackward(torch.autograd.Function):
    """The identity, whose backward puts a mark on the timeline."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, label: str) -> Tensor:
        ctx.label = label
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        mark(ctx.label)
        return gradients[0], None


class Layer(nn.Module):
    """Three parameters of different sizes: gain [gains], weight [width, width], bias [width]."""

    def __init__(self, width: int, gains: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(gains, dtype=dtype))
        self.weight = nn.Parameter(torch.empty(width, width, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = nn.functional.linear(torch.tanh(inputs.to(self.weight.dtype)), self.weight, self.bias)
        return hidden * (1 + self.gain.mean())


class Paths(nn.Module):
    """Layers through which each call goes in an order of its own; a layer left out has no gradient then.

    gains: one number a layer, see `Layer`. dtypes: of the layers, by name. frozen, tied: numbers of layers
    that are not trained, and that have the weight of layer 0. Inputs and outputs [B, width], float64 inside.
    """

    def __init__(
        self, width: int, gains: list[int], dtypes: list[str], frozen: list[int], tied: list[int]
    ) -> None:
        super().__init__()
        kinds = [getattr(torch, name) for name in dtypes]
        self.layers = nn.ModuleList(Layer(width, *each) for each in zip(gains, kinds, strict=True))
        for number in frozen:
            self.layers[number].requires_grad_(False)
        for number in tied:
            self.layers[number].weight = self.layers[0].weight

    def forward(self, inputs: Tensor, order: list[int], micro_batch: int = 0) -> Tensor:
        hidden = inputs
        for number in order:
            label = reaches(number, micro_batch)
            hidden = _MarkInBackward.apply(self.layers[number](hidden), label)  # type: ignore[no-untyped-call]
        return hidden


def reaches(layer: int, micro_batch: int) -> str:
    """The mark that backward makes before it computes this layer's gradients."""
    return f"backward {micro_batch} reaches layer {layer}"
