"""Finding the drivers that graders name: functions of `graders/units/*/drivers.py`, or of a module of such a
package, run beside the answer.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

from graders.grading.answer import PlainData

Driver = Callable[..., PlainData]


class NoSuchDriver(LookupError):
    """A grader named a driver that does not exist."""


def find_driver(name: str) -> Driver:
    """The function that "unit_01.steps" names: `steps` of `graders/units/unit_01/drivers.py`.

    A unit's drivers may be several modules: "unit_12.space.halos" is `halos` of
    `graders/units/unit_12/drivers/space.py`. "call" and "outcome", without a unit, are those of
    `graders/units/drivers.py`.
    """
    *modules, function = name.split(".")
    if not all(part.isidentifier() for part in (*modules, function)):
        raise NoSuchDriver(f'"{name}" names no driver; a driver\'s name looks like "unit_01.steps".')
    module = ".".join(("graders.units", *modules[:1], "drivers", *modules[1:]))
    try:
        driver: Driver = getattr(importlib.import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise NoSuchDriver(f"There is no driver {name}: {error}.") from error
    return driver


def driver_name(driver: Driver) -> str:
    """The name by which `find_driver` finds it."""
    modules = driver.__module__.removeprefix("graders.units.").split(".")
    modules.remove("drivers")
    return ".".join((*modules, driver.__name__))


@cache
def reply_type(driver: Driver) -> Any:
    """What the driver is annotated to return."""
    return get_type_hints(driver)["return"]
