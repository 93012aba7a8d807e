"""Which units and exercises there are."""

import importlib
import pkgutil

from graders import units
from graders.grading.exercise import REGISTRY, Exercise


def load_all() -> dict[str, dict[str, Exercise]]:
    """Import the graders of every unit; returns unit -> exercise name -> exercise."""
    for package in sorted(module.name for module in pkgutil.iter_modules(units.__path__) if module.ispkg):
        importlib.import_module(f"{units.__name__}.{package}.exercises")
    return REGISTRY


def exercises(unit: str) -> dict[str, Exercise]:
    """The exercises of a unit by name, in the order in which the unit has them; empty if it has none."""
    return load_all().get(unit, {})
