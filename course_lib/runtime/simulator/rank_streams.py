"""Standard output and error that each simulated rank has for itself."""

import io
from collections.abc import Callable
from typing import Any, TextIO

from course_lib.runtime.simulator.engine import current_rank


class RankStream(io.TextIOBase):
    """Standard output or error that each rank has for itself, and everyone else as before."""

    def __init__(self, kernels: TextIO, output_of: Callable[[int], io.StringIO]) -> None:
        super().__init__()
        self._kernels = kernels
        self._output_of = output_of

    def write(self, text: str) -> int:
        """Write to the buffer of the rank that calls, or to the kernel's stream."""
        return self._target().write(text)

    def flush(self) -> None:
        """Flush where `write` writes."""
        self._target().flush()

    def writable(self) -> bool:
        """Always."""
        return True

    def isatty(self) -> bool:
        """A rank has no terminal."""
        return current_rank.get() is None and self._kernels.isatty()

    def fileno(self) -> int:
        """The kernel's, for code that asks; a rank's buffer has none."""
        if current_rank.get() is not None:
            raise io.UnsupportedOperation("a simulated rank's output is no file")
        return self._kernels.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def _target(self) -> TextIO:
        rank = current_rank.get()
        return self._kernels if rank is None else self._output_of(rank)
