"""What train_ddp trains in a driver: numbered samples, a model that writes the numbers down, a device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset

from course_lib import mark
from graders.units.models import load_values

DEVICE = torch.device("cpu:0")
"""The only one that is always there; what counts is that somebody names it, and not just any "cpu"."""
_MOVES = frozenset({"to", "tensor", "as_tensor", "asarray"})
"""What may name the device."""
_LOSSES = frozenset({"cross_entropy", "nll_loss"})
_PICKS = frozenset({"__getitem__", "index_select", "stack", "cat"})
"""What makes a batch of samples that are on the device already."""


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """inputs [N, 1 + F, 1], of which the first number is the sample's own; labels [N]."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._inputs, self._labels = inputs, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._inputs[index], self._labels[index]


class Numbered(nn.Module):
    """Two linear layers; writes down which samples a forward pass with a graph had. Inputs [B, 1 + F, 1]."""

    def __init__(self, values: Sequence[Tensor]) -> None:
        """values: weight [H, F] and bias [H] of the first layer, weight [K, H] and bias [K] of the second."""
        super().__init__()
        hidden, features = values[0].shape
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, values[2].shape[0])
        load_values(self.parameters(), values)
        self.passes: list[list[int]] = []
        self.inputs: list[Tensor] = []
        """What the forward passes were given; kept, so that no other tensor gets the same id."""
        self.moved = False

    def to(self, *arguments: Any, **options: Any) -> Any:
        self.moved = self.moved or _names_the_device((*arguments, *options.values()))
        return super().to(*arguments, **options)

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.passes.append(inputs[:, 0, 0].long().tolist())
            self.inputs.append(inputs)
        logits: Tensor = self.second(torch.tanh(self.first(inputs[:, 1:, 0])))
        return logits


class Descent:
    """Plain gradient descent with what an optimizer has to have; torch.optim's takes long to import.

    Each step puts the mark "step" on the timeline, and notes which samples the model has had since the last.
    """

    def __init__(self, model: Numbered, rate: float) -> None:
        self._model = model
        self.param_groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "lr": rate}]
        self.batches: list[list[int]] = []

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._model.zero_grad(set_to_none)

    def step(self) -> None:
        mark("step")
        self.batches.append([number for numbers in self._model.passes for number in numbers])
        self._model.passes.clear()
        with torch.no_grad():
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=self.param_groups[0]["lr"])


class MovesNoted(TorchFunctionMode):
    """Keeps what was made on the device, and the labels that losses were computed with."""

    def __init__(self) -> None:
        super().__init__()
        self._moved: list[Tensor] = []
        self.labels: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        picked = args[0] if args and isinstance(args[0], list | tuple) else args[:1]
        if name in _PICKS and picked and self.all_of(picked):
            self._moved.append(result)
        if name in _MOVES and _names_the_device((*args, *(kwargs or {}).values())):
            self._moved.append(result)
        if name in _LOSSES and len(args) > 1:
            self.labels.append(args[1])
        return result

    def all_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether each of the tensors, of any shapes, was moved, or picked out of what was."""
        moved = {id(tensor) for tensor in self._moved}
        return all(id(tensor) in moved for tensor in tensors)


def _names_the_device(arguments: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.device | str) and torch.device(each) == DEVICE for each in arguments)
