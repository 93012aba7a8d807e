"""Random numbers that each simulated rank draws for itself: torch's, NumPy's and Python's generators.

torch's generator is swapped when the turn passes, for torch asks for it in C++; the functions of `random` and
`numpy.random` look up the generator of the rank that calls them.
"""

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from course_lib.runtime.simulator.engine import current_rank
from course_lib.runtime.simulator.replaced import replaced

_RANDOM_FUNCTIONS = tuple(
    name
    for name in random.__all__
    if not isinstance(getattr(random, name), type) and hasattr(random.Random, name)
)
_NUMPY_FUNCTIONS = tuple(
    name
    for name in np.random.__all__
    if not isinstance(getattr(np.random, name), type) and hasattr(np.random.RandomState, name)
)


class TorchState(NamedTuple):
    """A state of torch's generator, and the same as bytes, which are compared in a third of the time."""

    tensor: torch.Tensor
    content: bytes

    @classmethod
    def read(cls, generator: torch.Generator) -> "TorchState":
        """That of the generator now."""
        state = generator.get_state()
        return cls(state, _content(state))


_Content = ctypes.c_char * torch.default_generator.get_state().nbytes


def _content(state: torch.Tensor) -> bytes:
    """The bytes of a generator's state, read past NumPy, which takes three times as long."""
    return _Content.from_address(state.data_ptr()).raw


class RandomState:
    """The generators of one rank; NumPy's and Python's are made when the rank first draws from them."""

    def __init__(self, torch_state: TorchState, seed: int) -> None:
        self.torch_state = torch_state
        self._seed = seed

    @cached_property
    def numpy(self) -> np.random.RandomState:
        return np.random.RandomState(self._seed)

    @cached_property
    def python(self) -> random.Random:
        return random.Random(self._seed)


class RandomStates:
    """The generators of all ranks of a launch, all from the same seed."""

    def __init__(self, ranks: int, seed: int) -> None:
        torch_state = TorchState.read(torch.Generator().manual_seed(seed))
        self._ranks = [RandomState(torch_state, seed) for _ in range(ranks)]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have the functions of `random` and `numpy.random` draw from the generator of who calls them."""
        pythons = {
            name: self._by_rank(getattr(random, name), lambda state: state.python)
            for name in _RANDOM_FUNCTIONS
        }
        numpys = {
            name: self._by_rank(getattr(np.random, name), lambda state: state.numpy)
            for name in _NUMPY_FUNCTIONS
        }
        with replaced(random, **pythons), replaced(np.random, **numpys):
            yield

    def swap(self, left: int | None, resumed: int) -> None:
        """Put torch's state of the resumed rank in place of the present one, which is kept for its rank.

        Ranks that have drawn nothing yet share one state, and most turns pass without a draw: then nothing is
        copied to and fro, which with hundreds of ranks costs more than the message that passes the turn.
        """
        new = self._ranks[resumed]
        if left is None:
            torch.default_generator.set_state(new.torch_state.tensor)
            return
        old = self._ranks[left]
        # The way of TorchState.read, without a TorchState: this is done at every turn.
        left_with = torch.default_generator.get_state()
        content = _content(left_with)
        if content != old.torch_state.content:
            old.torch_state = TorchState(left_with, content)
        if new.torch_state is not old.torch_state:
            torch.default_generator.set_state(new.torch_state.tensor)

    def leave(self, rank: int) -> None:
        """Keep torch's state for the present rank, which will be resumed."""
        self._ranks[rank].torch_state = TorchState.read(torch.default_generator)

    def _by_rank(
        self, kernels: Callable[..., Any], source: Callable[[RandomState], object]
    ) -> Callable[..., Any]:
        """`random.<name>` or `numpy.random.<name>` that draws from the state of the rank that calls it."""
        name = kernels.__name__

        def function(*args: Any, **kwargs: Any) -> Any:
            rank = current_rank.get()
            own = kernels if rank is None else getattr(source(self._ranks[rank]), name)
            return own(*args, **kwargs)

        return function
