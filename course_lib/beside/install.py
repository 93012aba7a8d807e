"""Installs a recipe: builds what pip does not have, keeps the wheel, and sets up the environment.

Whatever stops it, a full disk, a lost network, Control-C or the machine: nothing of what is left counts as
installed, and the same call begins anew.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from course_lib.beside.commands import Commands, Tell
from course_lib.beside.environments import (
    COMPLETE,
    VARIABLE,
    beside_folder,
    environment_of,
    missing,
    python_in,
    wheel_folder,
)
from course_lib.beside.recipes import BesideFailed, Recipe, Within, recipe_named

_SEES = "import site; site.addsitedir({folder!r})\n"
"""A line of a .pth file: another environment's packages are found after one's own."""

_GIBIBYTES_A_COMPILER = 2
"""Memory that a compiler takes for a source which includes all of PyTorch or TensorFlow."""


def install(name: str, tell: Tell) -> None:
    """Have the recipe of this name installed for this Python, if it is not. `tell` hears what is being done.

    Of several that are called at once, one installs and the others wait for it. Raises BesideFailed.
    """
    recipe = recipe_named(name)
    if not missing(name):
        return
    try:
        with _only_one(recipe, tell):
            if missing(name):
                _install(recipe, tell)
    except OSError as error:
        raise BesideFailed(
            f"{recipe.title} was not installed: {error}. The environment variable {VARIABLE} may name "
            f"another folder to work in than {beside_folder()}."
        ) from error


def _install(recipe: Recipe, tell: Tell) -> None:
    if recipe.source and not _kept_wheel(recipe):
        _programs_are_there(recipe)  # Before anything is downloaded.
    building = beside_folder() / "building" / recipe.name
    # What a killed one has left; what it started may still be writing there.
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=building, ignore_cleanup_errors=True) as scratch:
        log = beside_folder() / f"{recipe.name}.log"
        log.unlink(missing_ok=True)
        # Nothing that a shell's start-up file or a site's module has put on Python's path.
        alone = {} if recipe.uses_workbook else {"PYTHONPATH": ""}
        commands = Commands(log, Path(scratch), tell, alone)
        into = _into_own_environment if recipe.within is Within.OWN else _into_workbook
        into(recipe, commands)


@contextmanager
def _only_one(recipe: Recipe, tell: Tell) -> Iterator[None]:
    """No other process installs this recipe meanwhile, for whichever clone of the workbook."""
    folder = beside_folder()
    lock = FileLock(folder / f"{recipe.name}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        tell(f"Waiting for another process that installs {recipe.title}", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _into_workbook(recipe: Recipe, commands: Commands) -> None:
    """Into the environment that this process runs in."""
    if not os.access(sysconfig.get_path("purelib"), os.W_OK):
        raise BesideFailed(
            f"{recipe.title} belongs into the workbook's environment {sys.prefix}, which you may not write "
            f"to. Whoever looks after it can install it; or set up an environment of your own."
        )
    python = Path(sys.executable)
    if recipe.packages:
        commands.pip("Installing what it needs", python, ["install", *recipe.packages])
    _put(recipe, python, commands, lambda: _new_environment(recipe, commands.scratch / "builder", commands))


def _into_own_environment(recipe: Recipe, commands: Commands) -> None:
    """Into a new environment, which has the file `complete` when it is whole."""
    folder = environment_of(recipe)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        python = _new_environment(recipe, folder, commands)
        if recipe.packages:
            commands.pip("Downloading and installing packages", python, ["install", *recipe.packages])
        if recipe.without_dependencies:
            arguments = ["install", "--no-deps", *recipe.without_dependencies]
            commands.pip("Downloading and installing their sources", python, arguments)
        if recipe.source:
            _put(recipe, python, commands, lambda: python)
        else:
            _try(recipe, python, commands)
        (folder / COMPLETE).touch()
    except BaseException:
        # It may be what has filled the disk.
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _put(recipe: Recipe, python: Path, commands: Commands, builder: Callable[[], Path]) -> None:
    """What is built from source, into the environment of this Python. A kept wheel that fails is built anew.

    builder: makes the environment in which it is built, and gives its Python.
    """
    if wheel := _kept_wheel(recipe):
        with suppress(BesideFailed):
            _put_wheel(recipe, python, wheel, commands)
            return
    _put_wheel(recipe, python, _build(recipe, builder(), commands), commands)


def _put_wheel(recipe: Recipe, python: Path, wheel: Path, commands: Commands) -> None:
    """Install a wheel, and try it; one that does not work is taken out again."""
    # pip takes the same version from another build for the same thing, unless it is forced.
    arguments = ["install", "--no-deps", "--force-reinstall", str(wheel)]
    commands.pip(f"Installing {recipe.title}", python, arguments)
    try:
        _try(recipe, python, commands)
    except BaseException:
        commands.pip("Taking it out again", python, ["uninstall", "--yes", recipe.distribution])
        raise


def _try(recipe: Recipe, python: Path, commands: Commands) -> None:
    commands.run(f"Trying {recipe.title}", [str(python), "-c", recipe.check])


def _kept_wheel(recipe: Recipe) -> Path | None:
    """The wheel of an earlier build. One that is damaged is thrown away."""
    folder = wheel_folder(recipe)
    wheel = next(folder.glob("*.whl"), None)
    try:
        if wheel is None or zipfile.ZipFile(wheel).testzip() is None:
            return wheel
    except (OSError, zipfile.BadZipFile):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _build(recipe: Recipe, python: Path, commands: Commands) -> Path:
    """Build the wheel in the environment of this Python, and keep it."""
    _programs_are_there(recipe)
    if recipe.build_packages:
        commands.pip("Installing what building needs", python, ["install", *recipe.build_packages])
    made, kept = commands.scratch / "wheel", wheel_folder(recipe)
    arguments = ["-v", "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir", f"--wheel-dir={made}"]
    arguments += ["--no-binary", recipe.distribution, recipe.source]
    environment = {
        **recipe.environment,
        "CXX": str(_compiler_with_flags(recipe, commands.scratch)),
        "MAKEFLAGS": f"-j{_jobs()}",
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    commands.pip(f"Building {recipe.title}", python, arguments, environment)
    # In one step: a kept wheel is whole.
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(kept, ignore_errors=True)
    made.rename(kept)
    return next(kept.glob("*.whl"))


def _new_environment(recipe: Recipe, folder: Path, commands: Commands) -> Path:
    """A new virtual environment, as the recipe asks for it; its Python."""
    _enough_space(recipe)
    # What sees the workbook has its pip.
    without = ["--without-pip"] if recipe.uses_workbook else []
    commands.run("Making an environment", [_base_python(recipe), "-m", "venv", *without, str(folder)])
    python = python_in(folder)
    if recipe.uses_workbook:
        site = next(folder.glob("lib/python*/site-packages"))
        lines = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        (site / "workbook.pth").write_text("".join(_SEES.format(folder=line) for line in sorted(lines)))
    return python


def _programs_are_there(recipe: Recipe) -> None:
    """Raises BesideFailed, naming Debian's packages, if a program is missing that building needs."""
    if sys.platform != "linux":
        raise BesideFailed(f"{recipe.title} is built from source, and its recipe is for Linux only.")
    lacking = {name: package for name, package in recipe.programs.items() if not shutil.which(name)}
    if lacking:
        raise BesideFailed(
            f"{recipe.title} is built from source, which needs {' and '.join(lacking)}; there is none here. "
            f"On Debian or Ubuntu: apt-get install {' '.join(sorted(set(lacking.values())))}. On a cluster: "
            f"`module avail` shows its compilers."
        )


def _enough_space(recipe: Recipe) -> None:
    folder = beside_folder()
    free = shutil.disk_usage(folder).free // 10**6
    if free < recipe.megabytes:
        raise BesideFailed(
            f"{recipe.title} takes about {recipe.megabytes:,} MB while it is installed, and {folder} has "
            f"{free:,} MB left. Make room, or let the environment variable {VARIABLE} name a folder on "
            f"another disk."
        )


def _base_python(recipe: Recipe) -> str:
    """The Python to make an environment with. Raises BesideFailed if the one that is needed is not here."""
    if recipe.python in ("", sysconfig.get_python_version()):
        return sys.executable
    found = shutil.which(f"python{recipe.python}")
    # Some version managers leave programs behind that only say what they would have started.
    if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
        return found
    raise BesideFailed(
        f"{recipe.title} runs on Python {recipe.python} only; the workbook here runs on "
        f"{sysconfig.get_python_version()}, and there is no python{recipe.python}. Install that as well."
    )


def _compiler_with_flags(recipe: Recipe, folder: Path) -> Path:
    """A C++ compiler whose last words are the recipe's flags, so that no build can take them back."""
    compiler = folder / "c++"
    compiler.write_text(f'#!/bin/sh\nexec g++ "$@" {recipe.compiler_flags}\n')
    compiler.chmod(0o755)
    return compiler


def _jobs() -> int:
    """How many compilers at a time: one a core that this process may use, and each with memory enough."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // (_GIBIBYTES_A_COMPILER << 30), 16))
