"""What train_ddp trains in a driver: numbered samples, a model that writes the numbers down, a device."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset

from course_lib import mark
from graders.units.models import load_values
from graders.units.optimizers import PlainSGD

DEVICE = torch.device("cpu:0")
"""The only one that is always there; what counts is that somebody names it, and not just any "cpu"."""
FIRST = 1000
"""The number of the first sample, so that what somebody makes up, of zeros or at random, is none of them."""
_LOSSES = frozenset({"cross_entropy", "nll_loss"})
_PICKS = frozenset({"__getitem__", "index_select"})
_BRINGS = _PICKS | {"copy_", "__setitem__", "to", "type_as"}
"""What may get tensors in both places."""
_JOINS = frozenset({"cat", "concat", "stack", "hstack", "vstack"})
"""What makes one tensor of several, which all have to be in one place, single numbers too."""


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """inputs [N, 1 + F, 1], of which the first number is the sample's own; labels [N]."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._inputs, self._labels = inputs, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: SupportsIndex) -> tuple[Tensor, Tensor]:
        # A list of samples has no more than one for an index.
        number = operator.index(index)
        return self._inputs[number], self._labels[number]


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
        self.drawn: float | None = None
        """A random number that was drawn in the first of these passes, as dropout draws some."""

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            numbers: list[int] = inputs[:, 0, 0].nan_to_num().long().tolist()
            self.passes.append([number - FIRST for number in numbers if number >= FIRST])
            self.inputs.append(inputs)
            if self.drawn is None:
                self.drawn = float(torch.rand(()))
        logits: Tensor = self.second(torch.tanh(self.first(inputs[:, 1:, 0])))
        return logits


class Descent(PlainSGD):
    """Plain gradient descent.

    Each step puts the mark "step" on the timeline, and notes which samples the model has had since the last.
    """

    def __init__(self, model: Numbered, rate: float, uphill: bool) -> None:
        """uphill: whether to go along the gradient, and not against it."""
        super().__init__(model.parameters(), rate, momentum=0.0)
        self._model = model
        self.param_groups[0]["maximize"] = uphill
        self.batches: list[list[int]] = []
        self.sums: list[float] = []
        """Of all weights after each step; NaN counts as 0."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """See the base class."""
        with torch.enable_grad():
            loss = closure() if closure else None
        mark("step")
        self.batches.append([number for numbers in self._model.passes for number in numbers])
        self._model.passes.clear()
        [group] = self.param_groups
        with torch.no_grad():
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=group["lr"] * (1 if group["maximize"] else -1))
            weights = (each.detach().nan_to_num().double().sum() for each in self._model.parameters())
            self.sums.append(float(sum(weights)))
        return loss


class MovesNoted(TorchFunctionMode):
    """Lets tensors be on the device or not, as on a machine that has another one than the CPU.

    What names the device is there, and what is made of nothing but tensors that are there. A tensor that was
    brought there is another one than before, and its `device` is DEVICE: PyTorch tells no index of a CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[Tensor] = []
        """Those that losses were computed with."""
        self.mixed = ""
        """A call that got tensors on both, with one that was made on the host; empty if there was none."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        named = (*args, *(kwargs or {}).values())
        self.mixed = self.mixed or _mixes(name, named)
        result = func(*args, **(kwargs or {}))
        of = getattr(func, "__self__", None)
        if name == "__get__" and of is Tensor.device:
            return DEVICE if is_there(args[:1]) else result
        if name == "__set__" and of is Tensor.data and is_there(args[1:]):
            # So does model.to(device), also that of a module which holds the model.
            put_there(args[:1])
        if name in _LOSSES and len(args) > 1:
            self.labels.append(args[1])
        if isinstance(result, list | tuple) and is_there(args[:1]):
            # Parts of what is there, as of unbind and split, also where a loop goes through a tensor.
            put_there(each for each in result if isinstance(each, Tensor))
        if not isinstance(result, Tensor):
            return result
        if name == "cpu" or (name == "to" and _names_another(named)):
            return result.view_as(result)
        if is_there([result]):
            return result
        # By the name of the device, or by a tensor that is there: x.to(y).
        like = [each for each in named[1:] if isinstance(each, Tensor)] if name in ("to", "type_as") else []
        moved = _names_the_device(named) or is_there(like)
        alone = not _tensors_of(name, named)
        if moved and args and result is args[0]:
            result = result.view_as(result)
        if moved or is_there(_tensors_of(name, args)) or (alone and torch.get_default_device() == DEVICE):
            put_there([result])
        elif alone:
            result.__dict__["on_the_host"] = True
        return result


def _mixes(name: str, arguments: Sequence[Any]) -> str:
    """The name of a call that adds to a tensor made on the host, or computes with such a one, what is on the
    device, as no GPU does; empty for all others. A single number may come from the host.
    """
    if name in _JOINS:
        joined = _tensors_of(name, arguments)
        on_host = any("on_the_host" in each.__dict__ for each in joined)
        return name if on_host and any(is_there([each]) for each in joined) else ""
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    if name in _BRINGS or len(tensors) < 2 or not any(is_there([each]) for each in tensors):
        return ""
    first = arguments[0] if name.startswith("__i") or name.strip("_") + "_" == name else None
    of_host = [each for each in tensors if "on_the_host" in each.__dict__]
    return name if any(each.dim() or each is first for each in of_host) else ""


def _tensors_of(name: str, arguments: Sequence[Any]) -> list[Tensor]:
    """The tensors among a function's arguments; but where one picks with indices, these may be anywhere."""
    first = arguments[0] if arguments and isinstance(arguments[0], list | tuple) else arguments[:1]
    others = () if name in _PICKS else arguments[1:]
    return [each for each in (*first, *others) if isinstance(each, Tensor)]


def put_there(tensors: Iterable[Tensor]) -> None:
    """Let these tensors be on the device."""
    for tensor in tensors:
        tensor.__dict__["on_the_device"] = True


def is_there(tensors: Sequence[Any]) -> bool:
    """Whether there are some, and all are tensors on the device."""
    return bool(tensors) and all(
        isinstance(each, Tensor) and "on_the_device" in each.__dict__ for each in tensors
    )


def _names_the_device(arguments: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.device | str) and each in (DEVICE, str(DEVICE)) for each in arguments)


def _names_another(arguments: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.device | str) and torch.device(each) != DEVICE for each in arguments)
