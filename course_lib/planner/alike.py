"""Whether two modules compute the same, but for the numbers that they have learned: layers of one kind."""

from typing import Any

from torch import Tensor, nn


def alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether code that runs one on tensors without data would do the same with the other.

    So it is where both have a class, attributes, buffers, and shapes of parameters in common, and inside of
    them modules that are alike. What cannot be compared with certainty counts as different.
    """
    return _same(one, other) and _ties(one) == _ties(other)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    match one:
        case nn.Module():
            return _same(vars(one), vars(other))
        case Tensor():
            return _same_tensor(one, other)
        case dict():
            return list(one) == list(other) and _same(list(one.values()), list(other.values()))
        case list() | tuple():
            return len(one) == len(other) and all(map(_same, one, other))
        case int() | float() | str():
            return bool(one == other)
        case set():
            return all(isinstance(each, str) for each in one) and bool(one == other)
    return False


def _same_tensor(one: Tensor, other: Tensor) -> bool:
    """Of parameters the numbers do not matter; of others they may come into what is computed meanwhile."""
    looks = [
        (each.shape, each.stride(), each.dtype, each.device, each.requires_grad) for each in (one, other)
    ]
    if looks[0] != looks[1]:
        return False
    return isinstance(one, nn.Parameter) or one.device.type == "meta" or one.equal(other)


def _ties(module: nn.Module) -> list[int]:
    """For each parameter the place of the first that it is."""
    parameters = [id(each) for _, each in module.named_parameters(remove_duplicate=False)]
    return [parameters.index(each) for each in parameters]
