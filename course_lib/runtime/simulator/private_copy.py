"""Copies of arguments and functions, one for each rank, as if they had been sent to another process."""

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import _lru_cache_wrapper, lru_cache
from types import CodeType, ModuleType
from typing import Any, TypeVar

import cloudpickle
import torch
from cloudpickle.cloudpickle import _is_registered_pickle_by_value, _lookup_module_and_qualname

from course_lib.runtime.simulator.replaced import replaced

Value = TypeVar("Value")


def private_copy(value: Value) -> Callable[[], Value]:
    """A maker of copies of `value`, one for each rank, as if it had been sent to another process.

    Functions written in a notebook come with copies of the global variables they use, so that no rank sees
    what another does to them; functions and classes of importable modules, and classes of the notebook, stay
    the same objects. What cannot be copied is shared.
    """
    shared: list[Any] = []
    buffer = io.BytesIO()
    try:
        with _no_search_for_modules():
            _RankPickler(buffer, shared).dump(value)
    except Exception:
        # Anything may refuse, with any exception: an open file, a lock, a generator.
        return lambda: value
    written = buffer.getvalue()
    return lambda: _RankUnpickler(io.BytesIO(written), shared).load()


@contextmanager
def _no_search_for_modules() -> Iterator[None]:
    """Spare cloudpickle a look at every imported module for each function: the same process reads it."""
    find, here = cloudpickle.cloudpickle._find_imported_submodules, threading.get_ident()

    def found(*arguments: Any) -> list[ModuleType]:
        # Another thread may be writing for another process.
        return [] if threading.get_ident() == here else find(*arguments)

    with replaced(cloudpickle.cloudpickle, _find_imported_submodules=found):
        yield


_SAME_FOR_ALL = type | ModuleType | CodeType


class _RankPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Copies values; leaves classes, modules, code alone, and tensors to `copy.deepcopy`, which is faster."""

    def __init__(self, buffer: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(buffer)
        self._shared = shared

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, _SAME_FOR_ALL | torch.Tensor):
            return None
        self._shared.append(value)
        return len(self._shared) - 1

    def reducer_override(self, value: Any) -> Any:
        """A function of the notebook's that keeps its results keeps them on each rank by itself."""
        if isinstance(value, _lru_cache_wrapper) and not _is_of_a_library(value):
            parameters = value.cache_parameters()
            return _kept_anew, (value.__wrapped__, parameters["maxsize"], parameters["typed"])
        return super().reducer_override(value)


def _is_of_a_library(function: Any) -> bool:
    """Whether cloudpickle would write its name alone, as it does for functions of importable modules."""
    found = _lookup_module_and_qualname(function)
    return found is not None and not _is_registered_pickle_by_value(found[0])


def _kept_anew(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """The function with a cache of its own, an empty one."""
    return lru_cache(maxsize, typed)(function)


class _RankUnpickler(pickle.Unpickler):
    """Reads what `_RankPickler` wrote in this same process."""

    def __init__(self, buffer: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(buffer)
        self._shared = shared
        self._memo: dict[int, Any] = {}

    def persistent_load(self, position: int) -> Any:
        value = self._shared[position]
        if isinstance(value, _SAME_FOR_ALL):
            return value
        if not value.is_leaf:
            # deepcopy refuses a tensor with history; another process would get its values.
            value = self._memo.setdefault(id(value), value.detach())
        return copy.deepcopy(value, self._memo)
