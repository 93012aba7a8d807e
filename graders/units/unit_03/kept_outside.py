"""What an answer keeps outside of its function: the variables of its module, and what is in them."""

import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from types import ModuleType
from typing import Any

from torch import Tensor

_DEPTH, _MOST = 3, 1000
"""How deep, and at how many values, one looks in a variable."""

Kept = dict[str, list[Any]]
"""Variables by name, each as all that was found in it."""


def variables_of(answer: Callable[..., Any]) -> Kept:
    """The answer, and the variables of its module, as they are now; imported modules are none of them."""
    function = inspect.unwrap(answer)
    names = getattr(function, "__globals__", {})
    own = {name: value for name, value in names.items() if not name.startswith("__")}
    own[getattr(function, "__name__", "")] = function
    return {name: list(islice(_found_in(value, _DEPTH), _MOST)) for name, value in own.items()}


def changed(before: Kept, after: Kept) -> list[str]:
    """Names of the variables that are not as they were, in the order of the alphabet."""
    return sorted(name for name in before | after if not _same(before.get(name), after.get(name)))


def _same(before: list[Any] | None, after: list[Any] | None) -> bool:
    if before is None or after is None or len(before) != len(after):
        return False
    # Numbers and texts may be made anew, and be equal; of all else one and the same is meant.
    pairs = zip(before, after, strict=True)
    return all(
        one is other or (type(one) is type(other) and isinstance(one, int | float | str) and one == other)
        for one, other in pairs
    )


def _found_in(value: Any, depth: int) -> Iterator[Any]:
    """The value, and what it holds."""
    yield value
    if isinstance(value, Tensor):
        yield value._version
    # A logger may remember what it was asked for.
    if depth and not isinstance(value, ModuleType | logging.Logger):
        for part in _parts(value):
            yield from _found_in(part, depth - 1)


def _parts(value: Any) -> list[Any]:
    """Items of a collection; attributes of an object, a function, or a class."""
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value)
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    # Of a class they change when it is used: what Python itself keeps there is left out.
    attributes = getattr(value, "__dict__", {})
    parts = [part for name, part in attributes.items() if not name.startswith("__")]
    # A default value is made once, for all calls.
    return parts + list(getattr(value, "__defaults__", None) or ())
