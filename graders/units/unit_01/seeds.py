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

    def __enter__(self) -> "SeedsNoted":
        self._before: tuple[Any, Any] = random.getstate(), np.random.get_state()
        torch.default_generator.manual_seed(SEED)
        random.seed(SEED + self._run)
        np.random.seed(SEED + self._run)
        self._begun = torch.get_rng_state()
        return self

    def shuffle(self) -> None:
        """Draw a number of PyTorch's, as a loader does that shuffles, and note the seed."""
        self._seeds.append(torch.initial_seed())
        torch.rand(())

    def __exit__(self, *_: object) -> None:
        put_back = bool(self._seeds) and torch.equal(self._begun, torch.get_rng_state())
        self.kept = not put_back and {*self._seeds, torch.initial_seed()} == {SEED}
        """Whether PyTorch's state has gone on, and from no other seed."""
        self.drawn = random.random(), float(np.random.random())
        """The next numbers of the other libraries."""
        random.setstate(self._before[0])
        np.random.set_state(self._before[1])
