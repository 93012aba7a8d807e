"""Published measurements, each with what the simulator predicts for it: `predictions()`.

What goes into a prediction is what its source says of model, machine and cut, and data sheets. What one GPU
reaches comes from a source of its own (`course_lib.published.machines`); nothing is fitted to a row that is
predicted, and a row's own measurement is used in no prediction.
"""

from collections.abc import Iterator

from course_lib.published import images, transformers
from course_lib.published.row import Row

__all__ = ["Row", "predictions"]


def predictions() -> Iterator[Row]:
    """All rows, in the order of their sources."""
    yield from transformers.rows()
    yield from images.rows()
