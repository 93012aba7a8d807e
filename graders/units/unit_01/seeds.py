"""Whether an answer touches the random states of Python, NumPy or PyTorch."""

import random
from typing import Any

import numpy as np
import torch

SEED = 2_718_281_828
"""One that nobody else sets."""
Draw = tuple[float, float, float]


def _seed() -> None:
    torch.default_generator.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


def _draw() -> Draw:
    """A number of each library, as a loader draws them that shuffles."""
    return (
        float(torch.rand((), dtype=torch.float64, device="cpu")),
        random.random(),
        float(np.random.random()),
    )


class SeedsNoted:
    """Random states of a run's own, in which it is seen whether somebody else draws, or sets them."""

    def __init__(self) -> None:
        self.drawn: list[Draw] = []
        """What was drawn by those who shuffle, and then at the end."""

    def __enter__(self) -> "SeedsNoted":
        self._before: tuple[Any, Any] = random.getstate(), np.random.get_state()
        _seed()
        return self

    def shuffle(self) -> None:
        """Draw as a loader does that shuffles."""
        self.drawn.append(_draw())

    def __exit__(self, *_: object) -> None:
        self.shuffle()
        random.setstate(self._before[0])
        np.random.set_state(self._before[1])


def untouched(count: int) -> list[Draw]:
    """What is drawn so often where nobody else draws or sets a state."""
    with SeedsNoted() as noted:
        for _ in range(count - 1):
            noted.shuffle()
    return noted.drawn
