"""The models and the optimizer of unit 09: its drivers build them, and graders beside them."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import mark
from graders.units.models import load_values, mark_in_backward


class Ladder(nn.Module):
    """Linear layers of one width, tanh before each, called in any order; backward marks where it is.

    Inputs and outputs [B, width]. Tied: the first layer's weight is the last one's too. frozen: some layers.
    """

    def __init__(self, values: Sequence[Tensor], count: int, tied: bool, frozen: Sequence[int]) -> None:
        """values: of all parameters, in their order, each once."""
        super().__init__()
        width, dtype = len(values[0]), values[0].dtype
        self.layers = nn.ModuleList(nn.Linear(width, width, dtype=dtype) for _ in range(count))
        if tied:
            self.layers[-1].weight = self.layers[0].weight
        load_values(self.parameters(), values)
        for number in frozen:
            self.layers[number].requires_grad_(False)

    def forward(self, x: Tensor, order: Sequence[int]) -> Tensor:
        for number in order:
            x = mark_in_backward(self.layers[number](torch.tanh(x)), reaches(number))
        return x


def reaches(layer: int) -> str:
    """The mark that backward makes before it computes this layer's gradients."""
    return f"backward reaches {layer}"


def computes(layer: int) -> str:
    """The mark that forward makes before this layer computes."""
    return f"forward computes {layer}"


class Rung(nn.Module):
    """tanh, and two linear layers that share their weight; marks both passes. [B, width] to [B, width]."""

    def __init__(self, number: int, values: Sequence[Tensor]) -> None:
        """values: weight [width, width], and the two biases [width]."""
        super().__init__()
        width, dtype = len(values[0]), values[0].dtype
        self.number = number
        self.first = nn.Linear(width, width, dtype=dtype)
        self.second = nn.Linear(width, width, dtype=dtype)
        self.second.weight = self.first.weight
        load_values(self.parameters(), values)

    def forward(self, x: Tensor) -> Tensor:
        mark(computes(self.number))
        return mark_in_backward(self.second(self.first(torch.tanh(x))), reaches(self.number))


class Adaptive(torch.optim.Optimizer):
    """Running means of gradients and of their squares, as in Adam, without corrections; decays weights.

    The base class imports torch's compiler for some of this, which takes longer than all the rest.
    """

    def __init__(self, params: Iterable[Any], lr: float, keep: float = 0.5, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "keep": keep, "decay": decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See the base class."""
        params = param_group["params"]
        own = [params] if isinstance(params, Tensor) else list(params)
        self.param_groups.append({**self.defaults, **param_group, "params": own})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of those that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, keep = self.state[parameter], group["keep"]
                gradient = parameter.grad + group["decay"] * parameter
                for name, value in (("mean", gradient), ("square", gradient.square())):
                    state[name] = keep * state.get(name, torch.zeros_like(parameter)) + (1 - keep) * value
                parameter.sub_(group["lr"] * state["mean"] / (state["square"].sqrt() + 0.1))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See the base class; gradients are always set to None."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def numbers(self) -> int:
        """How many numbers it keeps for its parameters."""
        kept = [value for state in self.state.values() for value in state.values()]
        return sum(value.numel() for value in kept)
