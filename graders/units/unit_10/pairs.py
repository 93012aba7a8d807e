"""Answers of two parts."""

from typing import Any


def pair(result: Any) -> tuple[Any, Any]:
    """The two parts of a tuple or list; of whatever else came, itself and None."""
    if type(result) in (tuple, list) and len(result) == 2:
        return result[0], result[1]
    return result, None
