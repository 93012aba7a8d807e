"""What a unit's verdicts depend on, as a hash: whoever has the same need not be graded again."""

import hashlib
import os
import platform
from functools import cache
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
"""The checkout."""

_GRADING = ("grading", "protocol", "submissions", "host", "guest", "isolation")
"""The rooms of `graders` whose every line can change a verdict."""

_ONLY_SHOWN = ("figures", "notebook")
"""Rooms of `course_lib` that no grader runs."""


def key_of(unit: str, handed_in: str) -> str:
    """What verdicts depend on: what was handed in, as a hash, the unit's graders and the library."""
    return hashlib.sha256(f"{handed_in} {graders_key(unit, ROOT)}".encode()).hexdigest()


@cache
def graders_key(unit: str, root: Path) -> str:
    """A hash of every file below the checkout `root` that has a part in grading a unit; see `_parts_of`."""
    hashed = hashlib.sha256(f"{torch.__version__} {platform.python_version()}".encode())
    for path in _parts_of(unit, root):
        hashed.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode() + path.read_bytes())
    return hashed.hexdigest()


def _parts_of(unit: str, root: Path) -> list[Path]:
    """The files that a unit's verdicts depend on, whatever their kind.

    Those are all that drives, judges and runs submissions, the unit's own package, the released cells of all
    units (which say what is a demonstration), the sites, and the library, but for what only draws or shows.
    """
    units = root / "graders" / "units"
    folders = [root / "graders" / name for name in _GRADING]
    folders += [root / "course_lib", units / f"unit_{unit[:2]}"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    files += [*units.glob("*.py"), *units.glob("*/released_cells.json"), *(root / "slurm").glob("*.toml")]
    shown = tuple(str(root / "course_lib" / name) + os.sep for name in _ONLY_SHOWN)
    return sorted(
        {path for path in files if "__pycache__" not in path.parts and not str(path).startswith(shown)}
    )
