"""pyproject.toml, environment.yml, the Makefile, apt.txt and .ci/run describe one environment."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from course_lib.versions import TESTED

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


def exact_pins() -> set[str]:
    """The PyTorch and the torchvision of the default environment: what pip must resolve in one go."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {line for line in lines if line.startswith(("torch==", "torchvision=="))}


def test_a_wheel_holds_what_the_packages_read():
    # Invariant: every file of the packages that is no Python is package data, and every pattern has files.
    listed = subprocess.run(
        ["git", "ls-files", "course_lib", "graders", "workbook"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    data = PYPROJECT["tool"]["setuptools"]["package-data"]
    named = [{*(ROOT / package).glob(pattern)} for package, patterns in data.items() for pattern in patterns]
    assert all(named)
    files = {path for path in set().union(*named) if path.is_file()}
    assert files == {ROOT / name for name in listed.stdout.split() if not name.endswith(".py")}


def conda_pip_list() -> list[str]:
    return next(item["pip"] for item in CONDA["dependencies"] if isinstance(item, dict))


def test_a_site_may_have_another_torch():
    # Invariant: the package asks for a range; only the default environment has pins.
    asked = [each for each in PROJECT["dependencies"] if each.startswith("torch")]
    assert asked == [f"torch>={TESTED['torch'].oldest}", "torchvision>=0.21"]
    assert not any("==" in each for each in PROJECT["dependencies"])
    assert {pin.split("==")[0] for pin in exact_pins()} == {"torch", "torchvision"}


def test_conda_installs_what_pyproject_says():
    # Invariant: conda adds nothing of its own but Python, pip and make; pip installs this package with the
    # tools for development, and the pins stand in the same command.
    plain = {item for item in CONDA["dependencies"] if isinstance(item, str)}
    assert plain == {f"python{PROJECT['requires-python']}", "pip", "make"}
    assert set(conda_pip_list()) == exact_pins() | {"-e .[dev]", "./.jupyter", "-c constraints.txt"}


def test_make_installs_what_pyproject_says():
    # Invariant: one pip command with the pins and this package with the tools for development; on a site's
    # packages, the script that has no pins.
    commands = [line for line in MAKEFILE.splitlines() if "pip install" in line]
    assert len(commands) == 1
    assert set(re.findall(r'"([^"]+)"', commands[0])) == exact_pins() | {".[dev]"}


def test_every_package_has_one_version():
    # Invariant: the constraints name each package that pyproject.toml asks for, once, in one version without
    # a build of one machine, and the same torch and torchvision.
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    names = [re.sub("_", "-", line.partition("==")[0].lower()) for line in lines]
    assert len(names) == len(set(names))
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    assert {re.match(r"[\w-]+", each)[0].lower() for each in asked} <= set(names)
    assert exact_pins() <= set(lines)


def test_make_asks_for_the_python_that_pyproject_asks_for():
    # Invariant: the Makefile refuses exactly the versions that pip would refuse later.
    major, minor = PROJECT["requires-python"].removeprefix(">=").split(".")
    assert f"sys.version_info >= ({major}, {minor})" in MAKEFILE


def test_apt_txt_lists_packages_by_name():
    # Invariant: one Debian package a line and nothing else, so that a shell loop can read it.
    lines = (ROOT / "apt.txt").read_text().splitlines()
    assert lines == sorted(set(lines))
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", line) for line in lines)


def test_ci_runs_what_the_readme_says():
    # Invariant: every make target that CI calls exists and is explained to a newcomer, and the three
    # commands of the README are among them or open a browser.
    called = set(re.findall(r"^make ([\w-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE))
    told = (ROOT / "README.md").read_text() + (ROOT / "docs/running.md").read_text()
    own = {"horovod", "horovod-tensorflow", "beside", "test-torch"}
    assert called == own | {"lint", "workbook", "mutants-changed", "test"}
    # Invariant: the workbook runs first where nothing is beside it, as on a newcomer's machine; then units
    # that use what is.
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make ")]
    assert lines[0] == "make workbook"
    again = next(line for line in lines[1:] if line.startswith("make workbook"))
    assert lines.index(again) > lines.index(next(line for line in lines if line.startswith("make beside")))
    units = (ROOT / "solutions").glob("*.py")
    using = {path.stem for path in units if re.search("%%needs .*beside:", path.read_text())}
    assert set(re.search(r'UNITS="(.*)"', again)[1].split()) == using
    # The oldest PyTorch of the range, too.
    assert any(line.startswith(f"make test-torch TORCH={TESTED['torch'].oldest}.0 ") for line in lines)
    assert all(f"make {target}" in told for target in called | {"lab", "notebooks", "bench"})


def test_shell_scripts_are_valid():
    # Invariant: bash can parse them; -n runs nothing.
    for script in (ROOT / ".ci/run", ROOT / ".ci/packages", ROOT / ".ci/container"):
        subprocess.run(["bash", "-n", script], check=True)


def test_every_target_sets_up_first():
    # Invariant: whoever calls a target on a fresh clone gets its environment made.
    targets = re.findall(r"^([\w-]+): (.*)$", MAKEFILE, re.MULTILINE)
    assert dict(targets).pop("setup")
    assert {needs for name, needs in targets if name != "setup"} == {"setup"}


def test_on_a_sites_packages_its_torch_stays(tmp_path: Path):
    # Invariant: make setup SITE=1 installs the workbook beside the PyTorch that there is, here that of this
    # environment; brings no other one along; and has Jupyter and the README's programs for itself.
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True)
    environment = {name: text for name, text in os.environ.items() if name not in ("MAKEFLAGS", "PYTHONPATH")}
    made = subprocess.run(
        ["make", ".venv/.installed", f"PYTHON={sys.executable}"],
        cwd=tmp_path / "clone",
        # Compiling what nobody imports here takes as long as the rest.
        env=environment | {"SITE": "1", "PIP_NO_COMPILE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    own = tmp_path / "clone" / ".venv"
    packages = {path.name for path in own.glob("lib/python*/site-packages/*")}
    assert not {"torch", "torchvision"} & packages
    assert {"nbconvert", "ipykernel"} <= packages
    assert {"course", "jupyter", "nbgrader", "pytest"} <= {path.name for path in (own / "bin").iterdir()}
    # Invariant: it grades there; in the sandbox, too, Python finds what the site has.
    checked = subprocess.run(
        [own / "bin" / "course", "check", "solutions/00_hello_ranks.py", "--unit", "00_hello_ranks"],
        cwd=tmp_path / "clone",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_without_a_torch_on_the_site_nothing_is_installed(tmp_path: Path):
    # Invariant: the sentence says what was looked for and what to do.
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    told = subprocess.run(
        ["bash", ROOT / "slurm" / "containers" / "install.sh", tmp_path / "new"],
        env=os.environ | {"PYTHON": str(tmp_path / "bare" / "bin" / "python"), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    assert "There is no torch with torchvision" in told.stderr
    assert not (tmp_path / "new").exists()


def test_nbformat_builds_no_grammar() -> None:
    # Invariant: see .ci/held-back.txt. Every start of JupyterLab, papermill and `course` would pay for it.
    program = "import nbformat, sys; sys.exit('lark' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
