"""A device that there is not: batches and models that lie on the host until they are moved, and who waits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graders.units.unit_01.watched import Batch, Watched

_ASKS = frozenset({"__len__", "size", "dim", "numel", "__get__", "pin_memory", "__repr__"})
_READIES = _ASKS | {"to", "float", "long", "type", "contiguous"}
"""What a program may do with a batch before it goes to the device; it is still on the host then."""
_MAKES = frozenset({"tensor", "as_tensor", "asarray"})
"""What may name the device beside `to`."""
DEVICE = torch.device("cpu:0")
"""The only one that is always there; what counts is that somebody names it, and not just any "cpu"."""
_WAITS = frozenset(
    {"item", "tolist", "__float__", "__int__", "__bool__", "__index__", "cpu", "numpy"}
    | {"__format__", "__repr__", "__array__", "nonzero", "equal", "allclose"}
)
"""What needs a tensor's numbers, so that a program waits until the device has computed them."""
_NOTED = _WAITS | _MAKES | {"to"}


class OnHost(Tensor):
    """A tensor that has to be moved to the device before anything is computed with it."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        moves = name == "to" and _names_the_device(args, kwargs or {})
        if name not in _READIES:
            raise RuntimeError(f"{name}() got a batch that is not on the device; move it there first.")
        result = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        return _moved(result) if moves else result


def _moved(batch: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return batch.as_subclass(Tensor)


def _devices(arguments: Sequence[Any], options: Mapping[str, Any]) -> list[torch.device]:
    """Those that a call names."""
    named = (*arguments, *options.values())
    return [torch.device(each) for each in named if isinstance(each, torch.device | str)]


def _names_the_device(arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    return DEVICE in _devices(arguments, options)


def _fetches(arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether `to` brings a number to another device; a batch or a weight is no number."""
    return arguments[0].dim() == 0 and any(each != DEVICE for each in _devices(arguments, options))


class MovedLater(Watched):
    """A model that has to be moved to the device before it computes."""

    moved = False

    def to(self, *arguments: Any, **options: Any) -> Any:
        self.moved = self.moved or _names_the_device(arguments, options)
        return super().to(*arguments, **options)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.moved:
            raise RuntimeError("forward() with a model that is not on the device; move it there first.")
        return super().forward(inputs)


class Loader:
    """Batches in another order in each epoch. It has no length, and nothing but iteration."""

    def __init__(self, batches: Sequence[Batch], *, on_host: bool) -> None:
        self._batches = list(batches)
        self._on_host = on_host
        self.passes = 0
        """How often somebody began to go through it."""

    def __iter__(self) -> Iterator[Batch]:
        turned = self._batches[self.passes :] + self._batches[: self.passes]
        self.passes += 1
        for inputs, targets in turned:
            yield (
                (inputs.as_subclass(OnHost), targets.as_subclass(OnHost))
                if self._on_host
                else (inputs, targets)
            )


class WaitsNoted(TorchFunctionMode):
    """Notes in a model's log when somebody waits for numbers."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, options = getattr(func, "__name__", ""), kwargs or {}
        result = func(*args, **options)
        if name not in _NOTED:
            return result
        if name in _WAITS or (name == "to" and _fetches(args, options)):
            self._log.append("waits")
        return _moved(result) if name in _MAKES and _names_the_device(args, options) else result
