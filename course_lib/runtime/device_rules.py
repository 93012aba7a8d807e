"""Where a program waits for its device, told by PyTorch's operations."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

MIXES = {"copy_", "_foreach_copy_", "_to_copy"}
"""Operations between two devices."""
INDEXES = {"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"}
"""Those whose indices may be on the host. A "_" at the end of a name does not count."""
_COMPARES = {"equal", "allclose", "is_nonzero"}
"""What needs a tensor's numbers, beside the operations of which PyTorch says so in their tags."""
_NEEDS_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@cache
def name_of(operation: OpOverload) -> str:
    """Without the overload's."""
    return str(operation.overloadpacket.__name__)


def tensors_in(arguments: Any) -> list[Tensor]:
    """In whatever lists, tuples and dictionaries."""
    if isinstance(arguments, Tensor):
        return [arguments]
    if isinstance(arguments, dict):
        arguments = arguments.values()
    elif not isinstance(arguments, list | tuple):
        return []
    found = []
    for each in arguments:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, list | tuple | dict):
            found += tensors_in(each)
    return found


def waits(
    operation: OpOverload,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    there: Callable[[torch.device], bool],
) -> bool:
    """Whether a program waits for its device in this operation. there: whether a device is that one."""
    name = name_of(operation)
    needs_numbers = name in _COMPARES or not _NEEDS_NUMBERS.isdisjoint(operation.tags)
    if not (needs_numbers or name in MIXES or name.rstrip("_") in INDEXES):
        return False

    def lies_there(value: Any) -> bool:
        return isinstance(value, Tensor) and there(value.device)

    if not any(map(lies_there, tensors_in((arguments, options)))):
        return False
    if name == "_to_copy":
        return options.get("device") is not None and not there(torch.device(options["device"]))
    if name in MIXES:
        to, come = (tensors_in(each) for each in arguments[:2])
        pairs = zip(to, come, strict=False)
        return any(lies_there(one) and not lies_there(other) for other, one in pairs)
    if name.rstrip("_") in INDEXES:  # a mask's numbers say how many there are
        masks, values = (torch.bool, torch.uint8), arguments[2:3]
        if values and not lies_there(values[0]) and values[0].numel() == 1:
            return False  # where a mask is to be filled with a single number of the host, they need not
        return any(lies_there(each) and each.dtype in masks for each in tree_leaves(arguments[1]))
    return True
