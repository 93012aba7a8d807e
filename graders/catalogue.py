"""Which units and exercises there are."""

import importlib
import pkgutil

import graders
from graders.exercise import REGISTRY, Exercise


def load_all() -> dict[str, dict[str, Exercise]]:
    """Import the graders of every unit; returns unit -> exercise name -> exercise."""
    for module in sorted(module.name for module in pkgutil.iter_modules(graders.__path__)):
        if module.startswith("unit_"):
            importlib.import_module(f"graders.{module}")
    return REGISTRY


def exercises(unit: str) -> dict[str, Exercise]:
    """The exercises of a unit by name, in the order in which the unit has them; empty if it has none."""
    return load_all().get(unit, {})
