"""Which units and exercises there are."""

import importlib
import pkgutil
from pathlib import Path

from graders.grading.exercise import REGISTRY, Exercise

_UNITS = Path(__file__).parents[1] / "units"
"""They stand above this room, and are found here by name only."""


def load_all() -> dict[str, dict[str, Exercise]]:
    """Import the graders of every unit; returns unit -> exercise name -> exercise, in the units' order."""
    for package in sorted(module.name for module in pkgutil.iter_modules([str(_UNITS)]) if module.ispkg):
        unit = importlib.import_module(f"graders.units.{package}")
        for section in unit.SECTIONS:
            importlib.import_module(f"{unit.__name__}.{section}")
    return REGISTRY


def exercises(unit: str) -> dict[str, Exercise]:
    """The exercises of a unit by name, in the order in which the unit has them; empty if it has none."""
    return load_all().get(unit, {})
