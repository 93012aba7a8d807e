"""The driver for answers that need none: what they are given and what they return is plain data already."""

from collections.abc import Callable
from typing import Any

from graders.answer import PlainData


def call(answer: Callable[..., Any], *arguments: PlainData) -> PlainData:
    """What the answer returns for these arguments."""
    return answer(*arguments)
