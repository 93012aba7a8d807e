"""What ranks that stay are asked for, whether they are simulated or processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from course_lib.launch.run import Run
from course_lib.notebook.cell import Cell


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """What one rank printed in a cell, and the value of the cell's last expression as text."""

    printed: str
    value: str | None

    @property
    def text(self) -> str:
        """Both, the value after an arrow."""
        shown = [self.printed.rstrip("\n")] if self.printed.strip() else []
        if self.value is not None:
            shown.append(f"→ {self.value}")
        return "\n".join(shown) or "(no output)"


class StayingEngine(Protocol):
    """What carries out cells on ranks that stay."""

    size: int

    @property
    def printed(self) -> dict[int, str]:
        """What each rank has printed in the last cell, or so far in the present one."""
        ...

    def run(
        self, cell: Cell, names: Mapping[int, Mapping[str, Any]], chosen: tuple[int, ...]
    ) -> dict[int, RankAnswer]:
        """Run a cell on some ranks, whose namespaces get copies of names[rank] first.

        Raises as `launch` does.
        """
        ...

    def fetch(self, rank: int, name: str) -> Any:
        """A copy of a rank's variable. Raises KeyError."""
        ...

    def defined(self, rank: int) -> list[str]:
        """The names in a rank's namespace."""
        ...

    def record(self) -> Run:
        """All cells so far as one run."""
        ...

    def close(self) -> None:
        """End the ranks."""
        ...
