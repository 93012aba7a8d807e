"""Values that are almost plain data: what they are made of, and how one says what they are."""

from collections import OrderedDict, defaultdict
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graders.grading.answer import DriverReply


def made_plain(value: Any) -> Any:
    """The plain value of the few well-known types that are more than they need to be."""
    kind = type(value)
    if isinstance(value, DriverReply):
        return {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]
    if kind is torch.nn.Parameter:
        return value.detach()
    if issubclass(kind, tuple):  # torch.Size, a named tuple; by no method of its own
        return tuple(tuple.__iter__(value))
    if kind in (OrderedDict, defaultdict):
        return dict(value)
    if issubclass(kind, np.generic) and kind.__module__ == "numpy":
        return value.item()
    return value


def described(kind: type) -> str:
    """`a numpy.ndarray`, and for a subclass of a plain type what it derives from."""
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    base = next(
        (base for base in kind.__mro__[1:] if base in (int, float, str, list, tuple, dict, Tensor)), None
    )
    return f"a {name[:80]}" + (f" (a subclass of {base.__name__})" if base else "")
