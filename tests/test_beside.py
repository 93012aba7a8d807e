"""Libraries beside the workbook: installed whole or not at all, built once, whatever stops it on the way.

Most tests build a small library, really, in place of Horovod, for environments that stand for a clone's.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from course_lib.beside import BesideFailed, environments, install, interpreter, missing, recipes
from course_lib.beside.recipes import recipe_named

# One worker builds for all tests.
pytestmark = pytest.mark.xdist_group("beside")

ROOT = Path(__file__).parents[1]

SETUP = """
import os, pathlib, time
from setuptools import Extension, setup
with open(os.environ["BUILDS"], "a") as log:
    log.write("built\\n")
while pathlib.Path(os.environ["BUILDS"] + ".hold").exists():
    time.sleep(0.05)
native = Extension("pebble._native", ["native.cpp"], extra_compile_args=["-std=c++11"])
setup(name="pebble", version="1.0", packages=["pebble"], ext_modules=[native])
"""
NATIVE = """
#if __cplusplus < 201703L
#error "pebble is written in C++17"
#endif
#include <Python.h>
static PyModuleDef pebble = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&pebble); }
"""
RECIPES = """
[pebble]
title = "Pebble 1.0"
purpose = "tests"
within = "workbook"
source = "pebble==1.0"
programs = { "g++" = "g++" }
compiler_flags = "-std=c++17"
environment = { KIND = "small" }
variables = ["SHADE"]
check = "import pebble._native"
minutes = 0.5

[pebble-apart]
title = "Pebble 1.0, apart"
purpose = "tests"
within = "own"
sees_workbook = true
source = "pebble==1.0"
compiler_flags = "-std=c++17"
check = "import pebble._native, torch"
megabytes = 1

[pebble-old]
title = "Pebble 1.0, in C++11"
purpose = "tests"
within = "own"
sees_workbook = true
source = "pebble==1.0"

[pebble-huge]
title = "Pebble, huge"
purpose = "tests"
within = "own"
megabytes = 1_000_000_000_000

[pebble-python]
title = "Pebble for a Python of the past"
purpose = "tests"
within = "own"
python = "3.0"
"""


@dataclass(frozen=True, slots=True)
class Clone:
    """A workbook in an environment of its own, whose packages are found after those of that environment."""

    folder: Path
    builds: Path

    def start(self, *words: str, **variables: str) -> "subprocess.Popen[str]":
        """Begin `course beside` in it."""
        command = [self.folder / "bin" / "python", "-m", "workbook.cli", "beside", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=environment, stdout=pipe, stderr=pipe, text=True, cwd=self.folder
        )

    def run(self, *words: str, **variables: str) -> tuple[int, str]:
        """Exit status and output of `course beside`."""
        process = self.start(*words, **variables)
        out, errors = process.communicate(timeout=240)
        return process.returncode, out + errors

    def imports(self) -> bool:
        """Whether it can import the small library."""
        command = [self.folder / "bin" / "python", "-c", "import pebble._native"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def count(self) -> int:
        """How often the library's build has begun, in any clone."""
        # setuptools runs the file once to ask what it needs, and once to build.
        return len(self.builds.read_text().split()) if self.builds.exists() else 0


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what is kept; pip knows the small library's source and no network."""
    source = tmp_path / "source"
    for name, text in {
        "setup.py": SETUP,
        "native.cpp": NATIVE,
        "pebble/__init__.py": "",
        "PKG-INFO": "Metadata-Version: 2.1\nName: pebble\nVersion: 1.0\n",
    }.items():
        path = source / "pebble-1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with tarfile.open(source / "pebble-1.0.tar.gz", "w:gz") as archive:
        archive.add(source / "pebble-1.0", "pebble-1.0")
    (tmp_path / "recipes.toml").write_text(RECIPES)
    for name, value in {
        environments.VARIABLE: tmp_path / "kept",
        recipes.VARIABLE: tmp_path / "recipes.toml",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": source,
        "BUILDS": tmp_path / "builds",
    }.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path / "kept"


def new_clone(tmp_path: Path, name: str = "clone") -> Clone:
    folder = tmp_path / name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "workbook.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return Clone(folder, tmp_path / "builds")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the wheels that a test has built, of which others begin with a copy."""
    return tmp_path_factory.mktemp("built") / "wheels"


@pytest.fixture
def clone(kept: Path, tmp_path: Path, built: Path) -> Clone:
    """One in which the small library is installed."""
    if built.exists():
        shutil.copytree(built, kept / "wheels")
    clone = new_clone(tmp_path)
    status, said = clone.run("pebble")
    assert (status, clone.imports()) == (0, True), said
    if not built.exists():
        shutil.copytree(kept / "wheels", built)
    return clone


def wheel(kept: Path) -> Path:
    return next(kept.glob("wheels/*/*.whl"))


def only_python(tmp_path: Path) -> str:
    """A PATH without a compiler."""
    (tmp_path / "empty").mkdir()
    return str(tmp_path / "empty")


def test_it_is_built_and_installed_once(kept, tmp_path):
    # Invariant: after the command the library works in that environment; the second call has nothing to do.
    # The library asks for C++11 and needs C++17, as Horovod asks for too little: the recipe's flags are last.
    clone = new_clone(tmp_path)
    assert not clone.imports()
    status, said = clone.run("pebble")
    assert (status, clone.imports()) == (0, True), said
    begun = clone.count()
    status, said = clone.run("pebble")
    assert (status, clone.count()) == (0, begun)
    assert said == f"Pebble 1.0 is installed. Its Python: {clone.folder / 'bin' / 'python'}\n"
    # Nothing of the build is left.
    assert not list((kept / "building").rglob("*.cpp"))


def test_what_the_user_chooses_is_built_anew(kept, clone):
    # Invariant: a wheel that was kept without a choice (NCCL, in Horovod's case) does not stand for one with
    # it; who says nothing later takes what is there.
    begun = clone.count()
    status, said = clone.run("pebble", SHADE="dark")
    assert (status, clone.count() > begun, len(list(kept.glob("wheels/*/*.whl")))) == (0, True, 2), said
    begun = clone.count()
    assert [clone.run("pebble", **choice)[0] for choice in ({}, {"SHADE": "dark"})] == [0, 0]
    assert clone.count() == begun


def test_without_a_compiler_it_says_what_to_install(kept, tmp_path):
    clone = new_clone(tmp_path)
    status, said = clone.run("pebble", PATH=only_python(tmp_path))
    assert status == 1
    assert said == (
        "Pebble 1.0: about 0.5 minutes where it is built for the first time.\n"
        "Pebble 1.0 is built from source, which needs g++; there is none here. On Debian or Ubuntu: apt-get "
        "install g++. On a cluster: `module avail` shows its compilers.\n"
    )
    assert not clone.imports()


@pytest.mark.usefixtures("clone")
def test_a_damaged_wheel_is_built_anew(kept, tmp_path):
    # Invariant: no state of the cache can keep a library from being installed.
    for damage in (cut_off, of_another_kind):
        damage(wheel(kept), tmp_path / damage.__name__)
        clone = new_clone(tmp_path, f"after {damage.__name__}")
        begun = clone.count()
        status, said = clone.run("pebble")
        assert (status, clone.imports()) == (0, True), said
        assert clone.count() > begun


def cut_off(wheel: Path, _: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:1000])


def of_another_kind(wheel: Path, folder: Path) -> None:
    """An archive that is whole, of a library that does not load."""
    shutil.unpack_archive(wheel, folder, "zip")
    next(folder.glob("pebble/_native*")).write_text("not a library")
    Path(shutil.make_archive(str(folder), "zip", folder)).replace(wheel)


def test_of_two_at_once_one_builds(kept, tmp_path):
    # Invariant: the second waits, says so, and takes what the first has built: it has no compiler.
    first, second = new_clone(tmp_path), new_clone(tmp_path, "second")
    hold = Path(f"{first.builds}.hold")
    hold.touch()
    building = first.start("pebble")
    wait_until(first.count)
    waiting = second.start("pebble", PATH=only_python(tmp_path))
    said = [waiting.stderr.readline() for _ in range(2)]
    hold.unlink()
    assert said[-1] == "Waiting for another process that installs Pebble 1.0\n"
    for process in (building, waiting):
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0, out + errors
    assert (first.imports(), second.imports()) == (True, True)


def test_whatever_stops_it_the_same_command_begins_anew(kept, tmp_path):
    # Invariant: nothing half made counts as installed, and what was left is swept.
    clone = new_clone(tmp_path)
    hold = Path(f"{clone.builds}.hold")
    hold.touch()
    for how in (signal.SIGHUP, signal.SIGKILL):
        begun = clone.count()
        building = clone.start("pebble")
        wait_until(lambda begun=begun: clone.count() > begun)
        building.send_signal(how)
        _, errors = building.communicate(timeout=60)
        assert building.returncode != 0
        assert not clone.imports()
        if how != signal.SIGKILL:
            assert building.returncode == 1
            assert errors.splitlines()[-1] == "Stopped. The same command begins anew."
            assert not list((kept / "building").rglob("*.cpp"))
    hold.unlink()
    status, said = clone.run("pebble")
    assert (status, clone.imports()) == (0, True), said
    assert not list((kept / "building").rglob("*.cpp"))


def test_an_environment_of_its_own(kept, tmp_path, monkeypatch):
    # Invariant: it has its library and the workbook's (torch is in the recipe's own check), and the workbook
    # has nothing of it. It is kept too.
    install.install("pebble-apart", lambda *_: None)
    python = interpreter("pebble-apart")
    assert python.is_relative_to(kept)
    subprocess.run([python, "-c", "import pebble._native, course_lib"], check=True)
    with pytest.raises(ModuleNotFoundError):
        __import__("pebble")
    # One that was stopped half-way, or whose Python is gone, does not count.
    complete = python.parents[1] / environments.COMPLETE
    complete.rename(tmp_path / "away")
    assert missing("pebble-apart")
    (tmp_path / "away").rename(complete)
    assert not missing("pebble-apart")
    python.unlink()
    assert missing("pebble-apart")


def test_a_failed_build_says_why(kept):
    # Invariant: the sentence names the step and the log, and shows what the compiler said.
    with pytest.raises(BesideFailed, match="pebble is written in C") as caught:
        install.install("pebble-old", lambda *_: None)
    first = str(caught.value).splitlines()[0]
    log = kept / "pebble-old.log"
    assert first == f"Building Pebble 1.0, in C++11 failed (exit status 1). The log is {log}; it says:"
    assert missing("pebble-old")
    assert not list(kept.glob("environments/*"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "pebble-huge",
            r"Pebble, huge takes about [\d,]+ MB while it is installed, and .* has [\d,]+ MB left",
        ),
        (
            "pebble-python",
            r"runs on Python 3.0 only; the workbook here runs on 3\.\d+, and there is no python3.0",
        ),
        ("gravel", "There is nothing named gravel to stand beside. There are: pebble, "),
    ],
)
def test_what_cannot_be_is_a_sentence(kept, name, sentence):
    with pytest.raises(BesideFailed, match=sentence):
        install.install(name, lambda *_: None)


def test_a_folder_that_cannot_be_written_is_a_sentence(kept, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(
        BesideFailed, match=r"was not installed: .*Not a directory.*COURSE_BESIDE may name another"
    ):
        install.install("pebble-apart", lambda *_: None)


def test_another_torch_needs_another_build(clone, monkeypatch):
    # Invariant: what was built with one PyTorch does not count for another, and the sentence says so.
    site = next(clone.folder.glob("lib/python*/site-packages"))
    monkeypatch.syspath_prepend(str(site))
    assert missing("pebble") == ""
    monkeypatch.setattr(environments, "_torch_version", lambda: "9.0")
    assert missing("pebble") == (
        "Pebble 1.0 is not installed for PyTorch 9.0 as it is asked for today; what there is was built "
        "otherwise. In a terminal, in the workbook's folder: `course beside pebble`."
    )
    # What a site has installed in its own way is taken as it is; what pip was stopped at is not.
    next(site.glob("pebble*/direct_url.json")).unlink()
    assert missing("pebble") == ""
    next(site.glob("pebble*/INSTALLER")).unlink()
    assert missing("pebble").startswith("Pebble 1.0 is not installed here.")


def test_what_is_listed(kept, tmp_path):
    status, said = new_clone(tmp_path).run(COLUMNS="120")
    assert status == 0
    assert all(name in said for name in ("pebble", "pebble-apart", "course beside", str(kept)))


@pytest.mark.parametrize("name", list(recipes.recipes()))
def test_what_counts_as_installed_works(name):
    # Invariant: where `missing` says that a library is there, it can be imported, with all it was built for.
    if sentence := missing(name):
        pytest.skip(sentence)
    recipe = recipe_named(name)
    done = subprocess.run(
        [interpreter(name), "-c", recipe.check], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_recipes_fit_the_other_files():
    # Invariant: `apt.txt` has the packages that building needs, and the commands of the recipes are there.
    packages = (ROOT / "apt.txt").read_text().split()
    targets = (ROOT / "Makefile").read_text()
    for recipe in recipes.recipes().values():
        assert set(recipe.programs.values()) <= set(packages)
        assert f"\n{recipe.command.split()[1]}: setup\n" in targets


def wait_until(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
