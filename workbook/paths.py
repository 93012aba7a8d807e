"""Where the workbook's files stand, all of them under one root."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of a workbook. Only `notebooks` and `solutions` are kept; `build` can be made anew."""

    root: Path

    @property
    def solutions(self) -> Path:
        """One jupytext file a unit."""
        return self.root / "solutions"

    @property
    def notebooks(self) -> Path:
        """What students open."""
        return self.root / "notebooks"

    @property
    def index(self) -> Path:
        """What students open first."""
        return self.notebooks / "index.ipynb"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def source(self) -> Path:
        """nbgrader's source directory: notebooks with solutions, and nothing else, for nbgrader copies it."""
        return self.build / "source"

    @property
    def release(self) -> Path:
        """nbgrader's release directory: what it made of `source`.

        Not `notebooks` itself: nbgrader deletes a unit's folder here before it writes, and somebody's answers
        may stand in that one.
        """
        return self.build / "release"

    @property
    def solved(self) -> Path:
        """The executed solutions."""
        return self.build / "solved"

    @property
    def pages(self) -> Path:
        """The executed solutions as pages for a browser."""
        return self.build / "pages"

    @staticmethod
    def of_unit(directory: Path, unit: str) -> Path:
        """The notebook of a unit in one of the folders that hold one folder a unit, as nbgrader has it."""
        return directory / unit / f"{unit}.ipynb"
