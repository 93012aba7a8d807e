"""Functions, arguments and results on their way between processes.

cloudpickle sends functions and classes of a notebook or script by value, with those global variables that
they use. Tensors travel as plain copies on the CPU, of the part that is seen: a row of a large tensor does
not take the large tensor along.
"""

import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from course_lib.errors import BadLaunch
from course_lib.runtime.communication.callsite import is_library
from course_lib.runtime.processes.by_value import ByValuePickler
from course_lib.runtime.request import PerRank


@dataclass(frozen=True, slots=True)
class SerializedLaunch:
    """A launch's function and arguments, written: what all ranks get, and what each gets for itself."""

    shared: bytes
    own: tuple[bytes, ...]


def serialize_launch(
    function: Any, arguments: Sequence[Any], ranks: int, *, apart: bool = False
) -> SerializedLaunch:
    """Write a launch's function and arguments.

    apart: for another environment, which lacks what the function's module may import: it goes without that.
    Raises BadLaunch, naming what cannot be sent to another process.
    """
    per_rank = [value for value in arguments if isinstance(value, PerRank)]
    places = [isinstance(value, PerRank) for value in arguments]
    everyones = [value for value in arguments if not isinstance(value, PerRank)]
    try:
        with _unfindable_modules_by_value([] if apart else sys.path):
            shared = serialize((function, everyones, places))
            own = tuple(serialize([value[rank] for value in per_rank]) for rank in range(ranks))
    except Exception as error:
        # Whatever an object's own pickling raises: there is no common class.
        raise BadLaunch(_why_unsendable(function, arguments, error)) from None
    return SerializedLaunch(shared, own)


def serialize(value: Any) -> bytes:
    """Write a value."""
    return _Pickler.dumps(value)


class _Pickler(ByValuePickler):
    """By value, with tensors as compact copies instead of whole storages."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) in (Tensor, Parameter) and value.layout is torch.strided and not value.is_meta:
            return _reduce_tensor(value)
        if isinstance(value, ModuleType) and type(value) is not ModuleType:
            # By name: cloudpickle refuses modules of a kind of their own. One is torch.classes, and a
            # function that uses torch and says `data.classes` takes it along.
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def _reduce_tensor(tensor: Tensor) -> Any:
    values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = values.flatten().view(torch.uint8).numpy()
    # A tensor with a history leaves it behind, and is a plain value on the other side.
    requires_grad = tensor.is_leaf and tensor.requires_grad
    grad = tensor.grad if tensor.is_leaf else None
    return _rebuild_tensor, (type(tensor), data, tensor.dtype, tuple(tensor.shape), requires_grad, grad)


def _rebuild_tensor(
    kind: type,
    data: np.ndarray[Any, Any],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    requires_grad: bool,
    grad: Tensor | None,
) -> Tensor:
    tensor = torch.from_numpy(data).view(dtype).reshape(shape)
    if kind is Parameter:
        tensor = Parameter(tensor, requires_grad)
    elif requires_grad:
        tensor.requires_grad_()
    tensor.grad = grad
    return tensor


_registry = threading.Lock()
"""cloudpickle's list of modules to send by value is one for the process."""


@contextmanager
def _unfindable_modules_by_value(folders: Sequence[str]) -> Iterator[None]:
    """Send functions of modules that are not found by name in these folders as those of a notebook."""
    with _registry, ExitStack() as undo:
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and _is_unfindable(module, folders):
                cloudpickle.register_pickle_by_value(module)
                undo.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _is_unfindable(module: ModuleType, folders: Sequence[str]) -> bool:
    """Whether a module was loaded from a file that `import` would not find: by its path, say."""
    file, name = getattr(module, "__file__", None), module.__name__
    if not isinstance(file, str) or name == "__main__" or is_library(file):
        return False
    if sys.modules.get(name) is not module or name in cloudpickle.list_registry_pickle_by_value():
        return False
    stem = name.replace(".", "/")
    ends = (f"{stem}.py", f"{stem}/__init__.py")
    return not any(file == f"{folder}/{end}" for folder in folders for end in ends)


def _why_unsendable(function: Any, arguments: Sequence[Any], error: Exception) -> str:
    """A sentence that names the first thing that cannot be written, and what to do."""
    for position, value in enumerate(arguments):
        values = value if isinstance(value, PerRank) else (value,)
        for each in values:
            if (reason := _refusal(each)) is not None:
                return (
                    f"Argument {position}, {_kind(each)}, cannot be sent to another process ({reason}). "
                    f"Pass plain data instead: tensors, numbers, text, lists, dicts, models."
                )
    name = getattr(function, "__name__", repr(function))
    culprit = _unsendable_name(function, set())
    if culprit is None:
        return (
            f"The function {name} cannot be sent to another process ({error}). "
            f"Define it in a cell or at the top of a module."
        )
    user, used, value = culprit
    return (
        f"The function {name} cannot be sent to another process: {user} uses {used}, {_kind(value)}, and "
        f"that cannot be sent ({_refusal(value)}). Create it inside the function, or pass plain data "
        f"as an argument."
    )


def _unsendable_name(function: Any, seen: set[int]) -> tuple[str, str, Any] | None:
    """(function, name, value) of the variable that keeps `function` or what it calls from being sent."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return None
    seen.add(id(function))
    for name, value in _variables(function):
        if _refusal(value) is not None:
            return _unsendable_name(value, seen) or (function.__name__, name, value)
    return None


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables from outside that a function uses, and its defaults."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in cells)
    names = sorted(global_names(function.__code__))
    yield from ((name, function.__globals__[name]) for name in names if name in function.__globals__)
    yield from ((f"the default {value!r}", value) for value in function.__defaults__ or ())


def functions_of(thing: Any) -> list[FunctionType]:
    """A function itself, or those of a class."""
    members = vars(thing).values() if isinstance(thing, type) else (thing,)
    return [
        each for each in (getattr(each, "__func__", each) for each in members) if type(each) is FunctionType
    ]


def global_names(code: CodeType) -> set[str]:
    """Names that the code, or a function inside it, may look up as globals."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*(global_names(each) for each in inner))


def _refusal(value: Any) -> str | None:
    """Why a value cannot be written; None if it can."""
    try:
        with _unfindable_modules_by_value(sys.path):
            serialize(value)
    except Exception as error:
        return f"{error}"
    return None


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
