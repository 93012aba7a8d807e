"""The tensors of the GPU that graders lend, and what PyTorch asks of its kind of device."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from course_lib.runtime.device_rules import MIXES, name_of, tensors_in
from graders.units.gpu.rules import HOST, NAME, is_there, refuse_mixed

_LIBRARY = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


class Card(Protocol):
    """The GPU that a thread works with."""

    def computes(
        self, operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any], result: Any
    ) -> None:
        """It is given an operation. Its tensors here are those of the host, which hold the numbers."""

    def brought(self, nbytes: int) -> None:
        """So many bytes come to it from the host."""

    def waited_for(self, nbytes: int) -> None:
        """The program waits until so many bytes have come to the host."""


class _Entered(threading.local):
    """What a thread, such as a simulated rank, has entered."""

    def __init__(self) -> None:
        self.cards: list[Card] = []


entered = _Entered()


@cache
def gpu() -> torch.device:
    """The device: of a kind that PyTorch knows, but has no kernels for. Autograd runs its backward passes in
    the thread of the program.
    """
    for operation, kernel in (
        ("_local_scalar_dense", _number),
        ("empty_strided", _empty),
        ("empty.memory_format", _empty),
        ("_copy_from", _copy_from),
    ):
        _LIBRARY.impl(operation, kernel, "Lazy")  # type: ignore[no-untyped-call]
    torch.serialization.register_package(0, lambda _: None, _loaded)
    return torch.device(NAME, 0)


def _number(tensor: "OnDevice") -> Any:
    """The number in a tensor, where `torch.tensor` asks for it, which goes past modes and subclasses."""
    for card in entered.cards[-1:]:
        card.waited_for(tensor.nbytes)
    return tensor._numbers.item()


def _empty(size: Sequence[int], *stride: Sequence[int], dtype: Any = None, **_: Any) -> Tensor:
    """Room for what another thread of the program moves there: a mode is one thread's own."""
    empty = torch.empty_strided if stride else torch.empty
    return OnDevice(empty(size, *stride, dtype=dtype, device=HOST))


def _copy_from(come: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    here, there = (each._numbers if isinstance(each, OnDevice) else each for each in (to, come))
    here.copy_(there)
    return to


def _loaded(storage: Any, location: str) -> Any:
    """A storage that is loaded for the device lies on the host, whence `load_state_dict` moves it."""
    return storage if location.startswith(NAME) else None


class OnDevice(Tensor):
    """A tensor there. Its numbers are in a tensor of the host, which no program sees."""

    _numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "OnDevice":
        place = numbers.stride(), numbers.storage_offset()
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls, numbers.shape, *place, dtype=numbers.dtype, device=gpu()
        )
        made._numbers = numbers
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func == Tensor.__setitem__ and isinstance(args[2], bool | int | float):
            # It stays on the host, as for a real one. For other devices PyTorch makes a tensor there.
            args = *args[:2], torch.tensor(args[2], dtype=args[0].dtype, device=HOST)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return computed(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        """As PyTorch has it of every device."""
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What is saved has to be there, and lies on the host."""
        return self.detach().cpu().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __format__(self, spec: str) -> str:
        return format(repr(self) if self.dim() else self.item(), spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.detach().cpu()!r:.400}"[:-1] + f", device='{self.device}')"


DATA = Tensor.data


def set_data(tensor: Tensor, data: Tensor) -> None:
    """`tensor.data = data`, where both lie on the host, or on the device, or each on another."""
    if isinstance(tensor, OnDevice) is isinstance(data, OnDevice):
        DATA.__set__(tensor, data)  # type: ignore[attr-defined]
        if isinstance(data, OnDevice):
            tensor._numbers = data._numbers  # type: ignore[attr-defined]
        return
    other = data.detach().requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(other, tensor.requires_grad)
    tensor.grad = None  # it would be on the other device
    torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]


def on_host(tensor: Tensor) -> Tensor:
    """What a tensor holds, wherever it is; nobody waits for it."""
    with torch.utils._python_dispatch._disable_current_modes():
        return tensor.detach().to(HOST, copy=True)


def plain(value: Any) -> Any:
    """The value with a copy on the host of each tensor in it, in whatever lists, tuples and dictionaries."""
    return tree_map_only(Tensor, on_host, value)


def computed(operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The result of an operation, on the device where it belongs."""
    tensors, named = tensors_in((arguments, options)), options.get("device")
    there = any(isinstance(each, OnDevice) for each in tensors)
    if not there and (named is None or not is_there(named)):
        return operation(*arguments, **options)
    refuse_mixed(operation, arguments, options, tensors)
    if named is not None:
        options = {**options, "device": HOST}
        there = is_there(named)
    inside = [_numbers_in(each) for each in arguments]
    named_inside = {name: _numbers_in(each) for name, each in options.items()}
    given = {id(each._numbers if isinstance(each, OnDevice) else each): each for each in tensors}

    def placed(numbers: Tensor) -> Tensor:
        return given[id(numbers)] if id(numbers) in given else OnDevice(numbers)

    # Here nothing records a graph anyway, and a view of what was made in inference mode could not leave it.
    with torch.inference_mode(False):
        result = operation(*inside, **named_inside)
        for card in entered.cards[-1:]:
            if name_of(operation) in MIXES and not isinstance(tensors[-1], OnDevice):
                card.brought(tensors[-1].nbytes)
            else:
                card.computes(operation, inside, named_inside, result)
        if there and isinstance(result, Tensor):
            return placed(result)
        return tree_map_only(Tensor, placed, result) if there else result


def _numbers_in(value: Any) -> Any:
    """An operation's argument with what the host has of each tensor that is on the device."""
    if isinstance(value, OnDevice):
        return value._numbers
    return type(value)(map(_numbers_in, value)) if type(value) in (list, tuple) else value
