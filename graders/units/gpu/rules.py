"""What a GPU refuses, and where a program waits for one, told by PyTorch's operations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

NAME = "lazy"
"""Of the imitated device's kind: one that PyTorch knows, but has no kernels for."""
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


def is_there(device: Any) -> bool:
    """Whether somebody means the imitated device by this."""
    return torch.device(device).type == NAME


def name_of(operation: OpOverload) -> str:
    """Without the overload's."""
    return str(operation.overloadpacket.__name__)


def tensors_in(arguments: Any) -> list[Tensor]:
    """In whatever lists, tuples and dictionaries."""
    if isinstance(arguments, Tensor):
        return [arguments]
    if isinstance(arguments, Mapping):
        arguments = arguments.values()
    elif not isinstance(arguments, list | tuple):
        return []
    return [each for argument in arguments for each in tensors_in(argument)]


def _lies_there(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def refuse_mixed(operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise as PyTorch does where an operation gets tensors of two devices.

    Of a tensor on the host the device takes a single number, or an index, and nothing is written to it.
    """
    name, tensors = name_of(operation), tensors_in((arguments, options))
    others = [each for each in tensors if not _lies_there(each)]
    if not others or name in _MIXES or len(others) == len(tensors):
        return
    if name.rstrip("_") in _INDEXES and _lies_there(arguments[0]):
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
    """Whether a program waits for the device in this operation."""
    if not any(map(_lies_there, tensors_in((arguments, options)))):
        return False
    name = name_of(operation)
    if name == "_to_copy":
        return options.get("device") is not None and not is_there(options["device"])
    if name in _MIXES:
        to, come = (tensors_in(each) for each in arguments[:2])
        pairs = zip(to, come, strict=False)
        return any(_lies_there(one) and not _lies_there(other) for other, one in pairs)
    if name.rstrip("_") in _INDEXES:  # a mask's numbers say how many there are
        masks, values = (torch.bool, torch.uint8), arguments[2:3]
        if values and not _lies_there(values[0]) and values[0].numel() == 1:
            return False  # where a mask is to be filled with a single number of the host, they need not
        return any(_lies_there(each) and each.dtype in masks for each in tree_leaves(arguments[1]))
    return name in _COMPARES or not _NEEDS_NUMBERS.isdisjoint(operation.tags)
