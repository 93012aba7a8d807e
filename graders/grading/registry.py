"""Which units and exercises there are."""

import importlib
import pkgutil
from pathlib import Path

from graders.grading.exercise import REGISTRY, Exercise
from graders.grading.track import chosen_exercises

_UNITS = Path(__file__).parents[1] / "units"
"""They stand above this room, and are found here by name only."""


def load_all() -> dict[str, dict[str, Exercise]]:
    """Import the graders of every unit; returns unit -> exercise name -> exercise, in the units' order."""
    for package in _packages():
        _load(package)
    return loaded()


def loaded() -> dict[str, dict[str, Exercise]]:
    """The same of the units whose graders are imported already."""
    return dict(sorted(REGISTRY.items()))


def load_numbered(number: str) -> None:
    """Import the graders of the unit of this number, such as "02", if there is one."""
    package = f"unit_{number}"
    if package in _packages():
        _load(package)


def no_such_unit(unit: str) -> str:
    """A sentence for those who name a unit that has no graders here, with the reason where there is one."""
    known = sorted(load_all())
    folder = _UNITS / f"unit_{unit[:2]}"
    if folder.is_dir() and not any(name.startswith(unit[:2]) for name in known):
        return (
            f'The graders of "{unit}" are in {folder} now, but were not when this process loaded them. '
            f"The course is just being changed or updated: wait until that is done, then try again."
        )
    return f'There is no unit "{unit}". The units are {", ".join(known)}.'


def exercises(unit: str) -> dict[str, Exercise]:
    """The exercises of a unit by name, in the order in which the unit has them; empty if it has none.

    It imports the graders of this unit only: those of all take as long as PyTorch does.
    """
    load_numbered(unit[:2])
    return REGISTRY.get(unit, {})


def counted(unit: str, folder: Path | None = None) -> dict[str, Exercise]:
    """Those of a unit's exercises that count in a folder, the working one by default: a track has fewer."""
    chosen = chosen_exercises(folder or Path.cwd())
    found = exercises(unit)
    return (
        found
        if chosen is None
        else {name: each for name, each in found.items() if name in chosen.get(unit, ())}
    )


def counted_units(folder: Path | None = None) -> dict[str, dict[str, Exercise]]:
    """Unit -> its exercises that count in a folder, for those units that have any."""
    return {unit: found for unit in sorted(load_all()) if (found := counted(unit, folder))}


def _packages() -> list[str]:
    """Of each unit the package of its graders, by name, in the units' order."""
    return sorted(
        module.name for module in pkgutil.iter_modules([str(_UNITS)]) if module.name.startswith("unit_")
    )


def _load(package: str) -> None:
    """Import a unit's graders, and put its exercises into its order, whichever was imported first."""
    unit = importlib.import_module(f"graders.units.{package}")
    sections = [f"{unit.__name__}.{section}" for section in unit.SECTIONS]
    for section in sections:
        importlib.import_module(section)
    exercises = REGISTRY[unit.UNIT]
    in_order = sorted(exercises.items(), key=lambda each: sections.index(each[1].grade.__module__))
    REGISTRY[unit.UNIT] = dict(in_order)
