"""A measurement that was published, and a prediction of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """source: author and year. what: model, devices and cut, in words. inferred: what the source does not
    say and was filled in.

    measured, predicted: in `unit`, which is "teraFLOP/s a GPU" or "% of perfect scaling".
    """

    source: str
    what: str
    unit: str
    measured: float
    predicted: float
    inferred: str = ""

    @property
    def error(self) -> float:
        """How far the prediction is off, as a part of what was measured; positive if it is too fast."""
        return self.predicted / self.measured - 1
