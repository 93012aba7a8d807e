"""The recipes of `recipes.toml`: what can stand beside the workbook's packages, and what it takes."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

VARIABLE = "COURSE_RECIPES"
"""Environment variable that names another file of recipes."""


class BesideFailed(RuntimeError):
    """It is not there, or could not be put there. The message says what to do."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the sentence alone."""
        return [f"{type(self).__name__}: {self}"]


class Within(StrEnum):
    """Where a recipe is installed."""

    WORKBOOK = "workbook"
    """In the environment that the workbook runs in."""
    OWN = "own"
    """In an environment of its own, in the user's cache folder."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One library. The fields are those of the file; what a recipe does not say has the default below."""

    name: str
    title: str
    purpose: str
    within: Within
    packages: tuple[str, ...] = ()
    """Requirements for pip, which it needs when it runs."""
    without_dependencies: tuple[str, ...] = ()
    """Requirements for pip whose own requirements stay away: of these packages only the source is read."""
    source: str = ""
    """The requirement that is built from source; empty where there is nothing to build."""
    build_packages: tuple[str, ...] = ()
    """Requirements for pip, which only building needs."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Programs that building needs -> the Debian package that has them."""
    compiler_flags: str = ""
    """For the C++ compiler, after all that the library's own build gives it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables while it is built."""
    variables: tuple[str, ...] = ()
    """Names of environment variables of the user's that change what is built."""
    check: str = "pass"
    """Python that runs without an error where it is installed well."""
    python: str = ""
    """The only Python that it works with, such as "3.11"; empty: the workbook's."""
    sees_workbook: bool = False
    """Whether an environment of its own has the workbook's packages too, PyTorch among them."""
    includes: tuple[str, ...] = ()
    """Recipes that are not missing where this one is installed."""
    command: str = ""
    """What a student types to install it."""
    megabytes: int = 0
    """Disk space while it is installed, about."""
    minutes: float = 0
    """Time on two cores, without downloads, about."""

    @property
    def distribution(self) -> str:
        """The name under which pip knows what is built: "horovod"."""
        return self.source.partition("==")[0]

    @property
    def uses_workbook(self) -> bool:
        """Whether it is built with the workbook's packages, so that another PyTorch needs another build."""
        return self.within is Within.WORKBOOK or self.sees_workbook


def recipe_named(name: str) -> Recipe:
    """The recipe of this name; "torch-2.6.0" and the like have one, too.

    Raises BesideFailed, with the names that there are.
    """
    known = recipes()
    if release := re.fullmatch(r"torch-(2\.(\d+)\.\d+)", name):
        return _another_torch(name, release[1], int(release[2]))
    if name not in known:
        raise BesideFailed(f"There is nothing named {name} to stand beside. There are: {', '.join(known)}.")
    return known[name]


def _another_torch(name: str, version: str, minor: int) -> Recipe:
    """An environment with the workbook's packages and another PyTorch, to see what the workbook does there.

    version: such as "2.6.0"; minor: its 6, by which its torchvision is numbered too.
    """
    return Recipe(
        name,
        title=f"PyTorch {version}",
        purpose="the workbook on another PyTorch than its own",
        within=Within.OWN,
        packages=(f"torch=={version}", f"torchvision==0.{minor + 15}.*"),
        check=f"import torch, torchvision; assert torch.__version__.split('+')[0] == '{version}'",
        sees_workbook=True,
        command=f"make test-torch TORCH={version}",
        megabytes=6000,
        minutes=2,
    )


def recipes() -> Mapping[str, Recipe]:
    """Every recipe by its name. Raises OSError, ValueError or TypeError if the file is not as it must be."""
    return _read(Path(os.environ.get(VARIABLE) or Path(__file__).with_name("recipes.toml")))


@cache
def _read(path: Path) -> Mapping[str, Recipe]:
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: _recipe(name, entry) for name, entry in written.items()}


def _recipe(name: str, entry: Mapping[str, Any]) -> Recipe:
    lists = {each.name for each in fields(Recipe) if each.type == tuple[str, ...]}
    given: dict[str, Any] = {key: tuple(value) if key in lists else value for key, value in entry.items()}
    command = given.pop("command", f"course beside {name}")
    return Recipe(name, within=Within(given.pop("within")), command=command, **given)
