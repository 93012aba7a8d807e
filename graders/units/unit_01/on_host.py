"""A device that there is not: what lies on the host until it is moved, what is made there, and who waits."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graders.units.unit_01.watched import Batch, Watched

_ASKS = frozenset({"__len__", "size", "dim", "numel", "__get__", "pin_memory", "__repr__"})
_MOVES = frozenset({"to", "type_as"})
_READIES = _ASKS | _MOVES | {"float", "long", "type", "contiguous"}
"""What a program may do with a batch before it goes to the device; it is still on the host then."""
_LIKE = frozenset(
    {"empty_like", "zeros_like", "ones_like", "new_empty", "new_zeros", "new_ones", "new_tensor"}
)
_MAKES = frozenset({"tensor", "as_tensor", "asarray"})
"""What may name the device beside these."""
HOST = torch.device("cpu")
DEVICE = torch.device("cpu:0")
"""The only one that is always there; what counts is that somebody names it, and not just any "cpu"."""
_WAITS = frozenset(
    {"item", "tolist", "__float__", "__int__", "__bool__", "__index__", "cpu", "numpy"}
    | {"__format__", "__repr__", "__array__", "__contains__", "is_nonzero", "equal", "allclose"}
    | {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"}
)
"""What needs a tensor's numbers, or has a shape that depends on them: a program waits until the device
has computed them."""
_STORES = frozenset({"copy_", "__setitem__"})
"""What may bring numbers from the device into a tensor on the host."""
_NOTED = _WAITS | _MAKES | _STORES | _MOVES | {"type", "where", "one_hot", "__getitem__"}
_BEGINS = frozenset({"tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "linspace"})
"""What makes a tensor of no other, on the host unless the device is named."""
_JOINS = frozenset({"stack", "cat", "concat", "concatenate", "hstack", "vstack"})
"""What takes not even a single number from elsewhere."""


class OnHost(Tensor):
    """A tensor that has to be moved to the device before anything there is computed with it."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, options = getattr(func, "__name__", ""), kwargs or {}
        tensors = list(_tensors([*args, *options.values()]))
        on_host = all(isinstance(each, OnHost | MadeOnHost) for each in tensors)
        fills = name in _STORES | {"__getitem__"} and type(tensors[0]) is Tensor  # one that is on the device
        if not (name in _READIES or on_host or fills):
            raise RuntimeError(f"{name}() got a batch that is not on the device; move it there first.")
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **options)
        if not isinstance(result, Tensor):
            return result
        moves = name in _MOVES | _LIKE and _names_the_device(args, options)
        return result if fills else _moved(result) if moves else result.as_subclass(OnHost)


class MadeOnHost(Tensor):
    """A tensor that the program itself has on the host. The device takes a single number from there, and
    nothing else; nor can what is on the device be added to it in place, or be an index of it.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, options = getattr(func, "__name__", ""), kwargs or {}
        tensors = list(_tensors([*args, *options.values()]))
        if any(isinstance(each, OnHost) for each in tensors):
            return OnHost.__torch_function__(func, types, args, options)
        on_host = [each for each in tensors if isinstance(each, MadeOnHost)]
        mixed = len(on_host) < len(tensors)
        takes_any = name in _STORES or name == "__getitem__"
        if mixed and (_indexes(name, tensors) or not (takes_any or _takes_numbers(name, args, on_host))):
            raise RuntimeError(
                f"{name}() got tensors on two devices: one was made on the host, without device=..."
            )
        result = super().__torch_function__(func, types, args, options)  # type: ignore[no-untyped-call]
        stays = isinstance(args[0], MadeOnHost) if takes_any else not mixed
        leaves = name in _MOVES and _names_the_device(args, options)
        return _moved(result) if isinstance(result, Tensor) and (leaves or not stays) else result


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Those among arguments, and in lists and tuples of them."""
    for each in arguments:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _writes(name: str, arguments: Sequence[Any]) -> bool:
    """Whether the call changes its first argument, which the program has on the host."""
    in_place = name in ("__iadd__", "__isub__", "__imul__", "__itruediv__") or name.strip("_") + "_" == name
    return in_place and isinstance(arguments[0], MadeOnHost)


def _takes_numbers(name: str, arguments: Sequence[Any], on_host: Sequence[Tensor]) -> bool:
    """Whether what the call gets from the host are single numbers, which the device takes."""
    return not (_writes(name, arguments) or name in _JOINS or any(each.dim() for each in on_host))


def _indexes(name: str, tensors: Sequence[Tensor]) -> bool:
    """Whether the call looks up in a tensor on the host with an index on the device."""
    first, *indices = tensors
    return name == "__getitem__" and isinstance(first, MadeOnHost) and any(type(i) is Tensor for i in indices)


def _moved(batch: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return batch.as_subclass(Tensor)


def _named(arguments: Sequence[Any], options: Mapping[str, Any]) -> list[torch.device]:
    """The devices that a call names."""
    given = (*arguments, *options.values())
    return [torch.device(each) for each in given if isinstance(each, torch.device | str)]


def _devices(arguments: Sequence[Any], options: Mapping[str, Any]) -> list[torch.device]:
    """Those that a call names, be it by a tensor that is there: x.to(y)."""
    given = (*arguments, *options.values())
    others = given[1:] if arguments and isinstance(arguments[0], Tensor) else ()
    like = [each for each in others if isinstance(each, Tensor)]
    on_host = [isinstance(each, MadeOnHost | OnHost) for each in like]
    return _named(arguments, options) + [HOST if there else DEVICE for there in on_host]


def _names_the_device(arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    return DEVICE in _devices(arguments, options)


def _chooses(index: Tensor) -> bool:
    """Whether what is at an index can be told only with its own numbers: a mask's, or a single one."""
    mask = index.dtype in (torch.bool, torch.uint8)
    return mask or (index.dim() == 0 and not isinstance(index, MadeOnHost | OnHost))


def _waits(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a program waits for the device in this call."""
    first, *others = (*arguments, *options.values())
    if name in _STORES:
        return isinstance(first, MadeOnHost) and type(others[-1]) is Tensor
    if isinstance(first, MadeOnHost | OnHost):
        return False
    match name:
        case "to" | "type_as":  # another device; a weight, which a model's `to` brings there, is no number
            elsewhere = any(each != DEVICE for each in _devices(arguments, options))
            return elsewhere and not isinstance(first, torch.nn.Parameter)
        case "type":  # torch.FloatTensor is on the host
            return bool(others) and not isinstance(others[0], torch.dtype)
        case "where":  # of a condition alone: where it is true
            return not others
        case "one_hot":  # of how many classes is not said: one more than the largest
            return not others or others[0] == -1
        case "__getitem__":
            return any(_chooses(each) for each in _tensors(others))
        case "tensor" | "as_tensor" | "asarray":  # of numbers that are on the device
            return not isinstance(first, Tensor) and any(type(each) is Tensor for each in _tensors([first]))
    return name in _WAITS


_KNOWN = "_numbers_known_to_the_program"
"""Set on tensors that the program has made of its own numbers, such as the sizes of batches."""


def _known(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether the result of a call is on the host, and made of nothing that is on the device."""
    tensors = list(_tensors([*arguments, *options.values()]))
    if tensors:
        return all(getattr(each, _KNOWN, False) for each in tensors) and not _named(arguments, options)
    return name in _BEGINS | _MAKES and not _named(arguments, options)


def _note_known(result: Any, known: bool) -> None:
    for tensor in _tensors([result]):
        if known or hasattr(tensor, _KNOWN):
            setattr(tensor, _KNOWN, known)


class MovedLater(Watched):
    """A model that has to be moved to the device before it computes."""

    moved = False
    """Whether it was last moved to the device."""

    def to(self, *arguments: Any, **options: Any) -> Any:
        if not _devices(arguments, options):
            return super().to(*arguments, **options)
        self.moved = _names_the_device(arguments, options)
        return self

    def cpu(self) -> Any:
        return self.to(HOST)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.moved:
            raise RuntimeError("forward() with a model that is not on the device; move it there first.")
        return super().forward(inputs)


class Loader:
    """Batches in another order in each epoch. It has no length, and nothing but iteration."""

    def __init__(self, batches: Sequence[Batch], *, on_host: bool, shuffle: Callable[[], None]) -> None:
        """shuffle: called whenever somebody begins to go through it."""
        self._batches = list(batches)
        self._on_host = on_host
        self._shuffle = shuffle
        self.passes = 0
        """How often somebody began to go through it."""

    def __iter__(self) -> Iterator[Batch]:
        turned = self._batches[self.passes :] + self._batches[: self.passes]
        self.passes += 1
        self._shuffle()
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
        if func == Tensor.device.__get__:
            return self._device_of(args[0])
        name, options = getattr(func, "__name__", ""), kwargs or {}
        known = _known(name, args, options)
        result = func(*args, **options)
        _note_known(args[0] if name == "__setitem__" else result, known)
        if name not in _NOTED:
            return result
        if not known and _waits(name, args, options):
            self._log.append("waits")
        return _moved(result) if name in _MAKES and _names_the_device(args, options) else result

    def _device_of(self, tensor: Tensor) -> torch.device:
        """Of a tensor; all are on the device here."""
        return DEVICE


class HostAndDevice(WaitsNoted):
    """Beside that, tells what a program makes on the host from what is on the device."""

    def __init__(self, log: list[str], model: MovedLater | None = None) -> None:
        """model: one that is to be moved to the device; without it all that is given is there."""
        super().__init__(log)
        self._model = model

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        name, options = getattr(func, "__name__", ""), kwargs or {}
        if type(result) is Tensor and _stays_on_host(name, args, options):
            return result.as_subclass(MadeOnHost)
        return result

    def _device_of(self, tensor: Tensor) -> torch.device:
        moved = self._model is None or self._model.moved
        waits_there = isinstance(tensor, torch.nn.Parameter) and not moved
        return HOST if waits_there or isinstance(tensor, OnHost | MadeOnHost) else DEVICE


def _stays_on_host(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether the result of a call is on the host."""
    match name:
        case "cpu":
            return True
        case "to" | "type_as":
            return bool(_devices(arguments, options)) and not _names_the_device(arguments, options)
        case "tensor" | "as_tensor" | "asarray" if arguments and not isinstance(arguments[0], Tensor):
            return not _names_the_device(arguments, options)
    made_of_none = not list(_tensors([*arguments, *options.values()]))
    return made_of_none and not _names_the_device(arguments, options)
