"""Where what stands beside the workbook lies, and whether it is there for this Python and this PyTorch.

wheels/KEY/         what was built, as a wheel
environments/KEY/   environments of their own; the file `complete` is written last
building/           of installs that are going on
"""

import hashlib
import json
import os
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlparse

from platformdirs import user_cache_path

from course_lib.beside.recipes import BesideFailed, Recipe, Within, recipe_named, recipes

VARIABLE = "COURSE_BESIDE"
"""Environment variable that names another folder, such as one on a larger disk, or one that a site shares."""

WHEELS = "wheels"
COMPLETE = "complete"
"""The file that an environment has when it is whole."""


def beside_folder() -> Path:
    """Where all of it is kept: `$COURSE_BESIDE` if that is set, else in the user's cache folder.

    So a fresh clone of the workbook finds it again.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser().resolve()
    return user_cache_path("distributed-training-workbook", False) / "beside"


def missing(name: str) -> str:
    """Empty if this recipe is installed, for this Python and PyTorch; else a sentence that says what to run.

    It imports nothing and takes milliseconds. Raises BesideFailed if there is no such recipe.
    """
    recipe = recipe_named(name)
    providers = [recipe, *(other for other in recipes().values() if name in other.includes)]
    return "" if any(map(is_there, providers)) else _what_to_run(recipe)


def interpreter(name: str) -> Path:
    """The Python that can import what the recipe installs. Raises BesideFailed where it is not installed."""
    if sentence := missing(name):
        raise BesideFailed(sentence)
    recipe = recipe_named(name)
    return Path(sys.executable) if recipe.within is Within.WORKBOOK else python_in(environment_of(recipe))


def is_there(recipe: Recipe) -> bool:
    """Whether this recipe is installed as it is written today."""
    if recipe.within is Within.OWN:
        folder = environment_of(recipe)
        # The Python that an environment was made with may have gone since.
        return (folder / COMPLETE).exists() and python_in(folder).exists()
    built = _installed_build(recipe.distribution)
    # What somebody has installed in another way, as sites do, is taken as it is.
    if built is None or built == "":
        return built == "" and not recipe.includes
    # Whoever sets no variables takes what was built with some.
    return built == key_of(recipe) or built.startswith(f"{key_of(recipe)}-")


def key_of(recipe: Recipe) -> str:
    """What a build depends on, as the name of a folder: recipe, Python, platform, PyTorch if used, and what
    the user has set of the recipe's variables.
    """
    python = recipe.python or sysconfig.get_python_version()
    torch = f"-torch{_torch_version()}" if recipe.uses_workbook else ""
    built = (
        recipe.source,
        (*recipe.packages, *recipe.without_dependencies),
        recipe.build_packages,
        recipe.compiler_flags,
        sorted(recipe.environment.items()),
        sysconfig.get_platform(),
    )
    key = f"{recipe.name}-python{python}{torch}-{_digest(built)}"
    chosen = [(name, os.environ[name]) for name in sorted(recipe.variables) if os.environ.get(name)]
    return f"{key}-{_digest(chosen)}" if chosen else key


def _digest(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:8]


def wheel_folder(recipe: Recipe) -> Path:
    """Where the wheel of the recipe is kept."""
    return beside_folder() / WHEELS / key_of(recipe)


def environment_of(recipe: Recipe) -> Path:
    """The folder of the recipe's own environment; of one that sees the workbook, for this workbook alone."""
    seen = hashlib.sha256(sys.prefix.encode()).hexdigest()[:8] if recipe.sees_workbook else ""
    return beside_folder() / "environments" / "-".join(filter(None, (key_of(recipe), seen)))


def python_in(environment: Path) -> Path:
    """The interpreter of a virtual environment."""
    return environment / "bin" / "python"


def _torch_version() -> str:
    """Such as "2.13.0_cpu": of PyTorch's builds each has its own binary interface. "none" without PyTorch."""
    try:
        return version("torch").replace("+", "_")
    except PackageNotFoundError:
        return "none"


def _installed_build(name: str) -> str | None:
    """The key of the build that pip has installed; empty if not one of ours, None if it is not there.

    pip writes the path of the wheel into `direct_url.json` (PEP 610).
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    # pip writes this file after those of the library: without it, it was stopped in between.
    if found.read_text("INSTALLER") is None:
        return None
    url = json.loads(found.read_text("direct_url.json") or "{}").get("url", "")
    folder = Path(unquote(urlparse(url).path)).parent
    return folder.name if folder.parent.name == WHEELS else ""


def _what_to_run(recipe: Recipe) -> str:
    command = f"`{recipe.command}`"
    if (own := f"`course beside {recipe.name}`") != command:
        command += f", or {own}"
    here = f"In a terminal, in the workbook's folder: {command}."
    if recipe.within is Within.WORKBOOK and _installed_build(recipe.distribution):
        return (
            f"{recipe.title} is not installed for PyTorch {_torch_version()} as it is asked for today; what "
            f"there is was built otherwise. {here}"
        )
    return f"{recipe.title} is not installed here. {here}"
