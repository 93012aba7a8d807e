"""Whether an answer sets a random seed, of whatever library."""

import random
from typing import Any

import numpy as np
import torch

SEED = 2_718_281_828
"""One that nobody else sets."""


class SeedsNoted:
    """Random states of a run's own, in which it is seen whether somebody sets them."""

    def __init__(self, run: int) -> None:
        """run: a number by which the states of Python's and NumPy's own modules differ from another run's: if
        these then draw alike, somebody has set them.
        """
        self._run = run
        self._seeds: list[int] = []
        self._numbers: list[float] = []
        self.drawn: list[tuple[float, float]] = []
        """What was drawn of Python's and of NumPy's module, by those who shuffle and then at the end."""

    def __enter__(self) -> "SeedsNoted":
        self._before: tuple[Any, Any] = random.getstate(), np.random.get_state()
        torch.default_generator.manual_seed(SEED)
        random.seed(SEED + self._run)
        np.random.seed(SEED + self._run)
        return self

    def shuffle(self) -> None:
        """Draw a number of each library, as a loader does that shuffles, and note PyTorch's seed."""
        self._seeds.append(torch.initial_seed())
        self._numbers.append(float(torch.rand((), dtype=torch.float64, device="cpu")))
        self.drawn.append((random.random(), float(np.random.random())))

    def __exit__(self, *_: object) -> None:
        self.shuffle()
        self.kept = {*self._seeds} == {SEED} and len({*self._numbers}) == len(self._numbers)
        """Whether PyTorch's state has always gone on, and from no other seed."""
        random.setstate(self._before[0])
        np.random.set_state(self._before[1])
