"""A GPU that there is not: PyTorch takes it for a device of its own, and the processor computes for it.

It stands where PyTorch dispatches each operation to a device, below autograd. So whatever a program writes,
the operations come here that would come to a real one. What a real one refuses, and what makes a program
wait, is told by operations, not by the program's words.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "lazy"
HOST = torch.device("cpu")

_MIXES = {"copy_", "_foreach_copy_", "_to_copy"}
"""Operations between two devices."""
_INDEXES = {"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"}
"""Those whose indices may be on the host. A "_" at the end of a name does not count, here and in _FILLS."""
_FILLS = {"fill", "masked_fill", "index_fill"} | _INDEXES
"""What takes a single number from the host, beside all that goes element by element."""
_COMPARES = {"equal", "allclose", "is_nonzero"}
"""What needs a tensor's numbers, beside the operations of which PyTorch says so in their tags."""
_NEEDS_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_LIBRARY = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


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
    return torch.device(NAME, 0)


def _number(tensor: "OnDevice") -> Any:
    """The number in a tensor, where `torch.tensor` asks for it, which goes past modes and subclasses."""
    for entered in _entered[-1:]:
        entered.log.append("waits")
    return tensor._numbers.item()


def _empty(size: Sequence[int], *stride: Sequence[int], dtype: Any = None, **_: Any) -> Tensor:
    """Room for what another thread of the program moves there: a mode is one thread's own."""
    empty = torch.empty_strided if stride else torch.empty
    return OnDevice(empty(size, *stride, dtype=dtype, device=HOST))


def _copy_from(come: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    here, there = (each._numbers if isinstance(each, OnDevice) else each for each in (to, come))
    here.copy_(there)
    return to


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
        return _computed(func, args, kwargs or {})

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


_DATA = Tensor.data


def _set_data(tensor: Tensor, data: Tensor) -> None:
    """`tensor.data = data`, where both lie on the host, or on the device, or each on another."""
    if isinstance(tensor, OnDevice) is isinstance(data, OnDevice):
        _DATA.__set__(tensor, data)  # type: ignore[attr-defined]
        if isinstance(data, OnDevice):
            tensor._numbers = data._numbers  # type: ignore[attr-defined]
        return
    other = data.detach().requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(other, tensor.requires_grad)
    tensor.grad = None  # it would be on the other device
    torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]


class Gpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered the device can be named, and it is noted when somebody waits for it."""

    def __init__(self, log: list[str]) -> None:
        """log: gets "waits" each time that somebody does."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = log
        self._settings = ExitStack()

    def __enter__(self) -> Self:
        gpu()
        _entered.append(self)
        # A model that moves keeps its parameters; `tensor` makes its numbers on the host and moves them.
        for setting, now in (
            (
                torch.__future__.set_swap_module_params_on_conversion,
                torch.__future__.get_swap_module_params_on_conversion(),
            ),
            (torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors()),
        ):
            self._settings.callback(setting, now)
            setting(True)
        default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        self._settings.callback(torch.set_default_device, default and default.device)
        data = property(_DATA.__get__, _set_data)  # type: ignore[attr-defined]
        patches = ((torch.autocast, "__init__", _autocast_begins), (Tensor, "data", data))
        for owner, name, instead in patches:
            self._settings.enter_context(mock.patch.object(owner, name, instead))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        _entered.remove(self)
        self._settings.close()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if _name(func) in ("pin_memory", "_pin_memory"):
            return args[0].clone()
        if func._can_decompose():  # in inference mode it comes whole
            with self._again():
                return func.decompose(*args, **options)
        if _waits(func, args, options):
            self.log.append("waits")
        return _computed(func, args, options)

    @contextmanager
    def _again(self) -> Iterator[None]:
        """What an operation consists of comes here, too."""
        super().__enter__()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]


_entered: list[Gpu] = []
_begins = torch.autocast.__init__


@wraps(_begins)
def _autocast_begins(
    autocast: torch.autocast,
    device_type: str,
    dtype: Any = None,
    enabled: bool = True,
    *rest: Any,
    **more: Any,
) -> None:
    """PyTorch has no mixed precision for a device of this kind; to have it off is possible on all."""
    known = HOST.type if device_type == NAME and not enabled else device_type
    _begins(autocast, known, dtype, enabled, *rest, **more)


def on_host(tensor: Tensor) -> Tensor:
    """What a tensor holds, wherever it is; nobody waits for it."""
    with torch.utils._python_dispatch._disable_current_modes():
        return tensor.detach().to(HOST, copy=True)


def _name(operation: OpOverload) -> str:
    return str(operation.overloadpacket.__name__)


def _tensors(arguments: Any) -> list[Tensor]:
    return [each for each in tree_leaves(arguments) if isinstance(each, Tensor)]


def _is_there(device: Any) -> bool:
    return torch.device(device).type == NAME


def _computed(operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The result of an operation, on the device where it belongs."""
    tensors, named = _tensors((arguments, options)), options.get("device")
    there = any(isinstance(each, OnDevice) for each in tensors)
    if not there and (named is None or not _is_there(named)):
        return operation(*arguments, **options)
    _refuse_mixed(operation, arguments, options)
    if named is not None:
        options = {**options, "device": HOST}
        there = _is_there(named)
    inside = tree_map_only(OnDevice, lambda each: each._numbers, (arguments, options))
    given = {id(each._numbers if isinstance(each, OnDevice) else each): each for each in tensors}

    def placed(numbers: Tensor) -> Tensor:
        return given[id(numbers)] if id(numbers) in given else OnDevice(numbers)

    # Here nothing records a graph anyway, and a view of what was made in inference mode could not leave it.
    with torch.inference_mode(False):
        result = operation(*inside[0], **inside[1])
        return tree_map_only(Tensor, placed, result) if there else result


def _refuse_mixed(operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise as PyTorch does where an operation gets tensors of two devices.

    Of a tensor on the host the device takes a single number, or an index, and nothing is written to it.
    """
    name, tensors = _name(operation), _tensors((arguments, options))
    others = [each for each in tensors if not isinstance(each, OnDevice)]
    if not others or name in _MIXES or len(others) == len(tensors):
        return
    if name.rstrip("_") in _INDEXES and isinstance(arguments[0], OnDevice):
        others = [each for each in others if not any(each is index for index in tree_leaves(arguments[1]))]
    takes_numbers = (
        torch.Tag.pointwise in operation.tags or name.startswith("_foreach_") or name.rstrip("_") in _FILLS
    )
    written = [*_written(operation, arguments, options)]
    if all(takes_numbers and not each.dim() and all(each is not one for one in written) for each in others):
        return
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but {name}() got some on the GPU ({gpu()}) and "
        f"others on the host ({HOST})."
    )


def _written(operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Tensor]:
    """Those among the arguments that the operation changes."""
    for place, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(arguments[place] if place < len(arguments) else options.get(argument.name))


def _waits(operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a program waits for the device in this operation."""
    name = _name(operation)
    if not any(isinstance(each, OnDevice) for each in _tensors((arguments, options))):
        return False
    if name == "_to_copy":
        return options.get("device") is not None and not _is_there(options["device"])
    if name in _MIXES:
        to, come = (_tensors(each) for each in arguments[:2])
        pairs = zip(to, come, strict=False)
        return any(isinstance(one, OnDevice) and not isinstance(other, OnDevice) for other, one in pairs)
    if name.rstrip("_") in _INDEXES:  # a mask's numbers say how many there are
        masks, values = (torch.bool, torch.uint8), arguments[2:3]
        if values and not isinstance(values[0], OnDevice) and values[0].numel() == 1:
            return False  # where a mask is to be filled with a single number of the host, they need not
        return any(isinstance(each, OnDevice) and each.dtype in masks for each in tree_leaves(arguments[1]))
    return name in _COMPARES or not _NEEDS_NUMBERS.isdisjoint(operation.tags)
