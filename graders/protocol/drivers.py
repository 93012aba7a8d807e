"""Finding the drivers that graders name: functions of `graders/units/*/drivers.py`, run beside the answer."""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

from graders.grading.answer import PlainData

Driver = Callable[..., PlainData]


class NoSuchDriver(LookupError):
    """A grader named a driver that does not exist."""


def find_driver(name: str) -> Driver:
    """The function that "unit_02.average" names: `average` of `graders/units/unit_02/drivers.py`.

    "call" and "call_alone", without a unit, are those of `graders/units/drivers.py`.
    """
    unit, _, function = name.rpartition(".")
    if not (function.isidentifier() and (unit.isidentifier() or not unit)):
        raise NoSuchDriver(f'"{name}" names no driver; a driver\'s name looks like "unit_02.average".')
    package = f"graders.units.{unit}" if unit else "graders.units"
    try:
        driver: Driver = getattr(importlib.import_module(f"{package}.drivers"), function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise NoSuchDriver(f"There is no driver {name}: {error}.") from error
    return driver


def driver_name(driver: Driver) -> str:
    """The name by which `find_driver` finds it."""
    unit = driver.__module__.removeprefix("graders.units.").removesuffix("drivers")
    return f"{unit}{driver.__name__}"


@cache
def reply_type(driver: Driver) -> Any:
    """What the driver is annotated to return."""
    return get_type_hints(driver)["return"]
