"""What a notebook's checks have said of its answers, for the cells that use them."""

import os
from dataclasses import dataclass

VARIABLE = "COURSE_SOLVED"
"""Set in the environment of a solved notebook: there every failure is an error, whatever a check said."""


@dataclass(frozen=True, slots=True)
class Points:
    """What the last check of an answer gave, and the most that it can give."""

    given: float
    possible: float

    def __str__(self) -> str:
        return f"{self.given:g} of {self.possible:g} point{'' if self.possible == 1 else 's'}"


_last: dict[str, Points] = {}


def note_points(name: str, given: float, possible: float) -> None:
    """Keep what a check gave the answer of this name, until its next check in this process."""
    _last[name] = Points(given, possible)


def not_right(names: list[str]) -> dict[str, Points]:
    """Those of the answers whose last check saw a mistake, with its points; none in a solved notebook."""
    if VARIABLE in os.environ:
        return {}
    return {name: _last[name] for name in names if name in _last and _last[name].given < _last[name].possible}
