"""What a GPU refuses, and where a program waits for one, told by PyTorch's operations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from course_lib.runtime import device_rules
from course_lib.runtime.device_rules import INDEXES, MIXES, name_of, tensors_in

NAME = "lazy"
"""Of the device's kind: one that PyTorch knows, but has no kernels for."""
HOST = torch.device("cpu")

_FILLS = {"fill", "masked_fill", "index_fill"} | INDEXES
"""What takes a single number from the host, beside all that goes element by element. A "_" at the end of
a name does not count."""


def is_there(device: Any) -> bool:
    """Whether somebody means the GPU by this."""
    return torch.device(device).type == NAME


def _lies_there(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def refuse_mixed(
    operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any], tensors: Sequence[Tensor]
) -> None:
    """Raise as PyTorch does where an operation gets tensors of two devices. tensors: all that it gets.

    Of a tensor on the host the device takes a single number, or an index, and nothing is written to it.
    """
    others = [each for each in tensors if not _lies_there(each)]
    if not others:
        return
    name = name_of(operation)
    if name in MIXES or len(others) == len(tensors):
        return
    if name.rstrip("_") in INDEXES and _lies_there(arguments[0]):
        others = [each for each in others if not any(each is index for index in tree_leaves(arguments[1]))]
    takes_numbers = (
        torch.Tag.pointwise in operation.tags or name.startswith("_foreach_") or name.rstrip("_") in _FILLS
    )
    written = [*_written(operation, arguments, options)]
    if all(takes_numbers and not each.dim() and all(each is not one for one in written) for each in others):
        return
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but {name}() got some on the GPU ({NAME}:0) and "
        f"others on the host ({HOST})."
    )


def _written(operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Tensor]:
    """Those among the arguments that the operation changes."""
    for place, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(arguments[place] if place < len(arguments) else options.get(argument.name))


def waits(operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a program waits for the GPU in this operation."""
    return device_rules.waits(operation, arguments, options, is_there)
