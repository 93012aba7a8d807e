"""Versions that `course doctor` shows: what is here, what is tested, what an older torch lacks."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib.slurm.doctor import findings, look_around
from course_lib.slurm.sites import site_named
from course_lib.versions import OLDER_TORCH, TESTED, Installed, installed, numbers
from course_lib.versions import findings as version_findings
from workbook.paths import Places

ROOT = Path(__file__).parents[1]
UNITS = {path.stem for path in Places(ROOT).solutions.glob("*.py")}
HERE = Installed("3.12.3", "2.13.0+cu129", "CUDA 12.9", "2.27.3", "2.34")


def sentences(**other: str) -> str:
    """What is said of an installation that differs so from one that is tested."""
    fields = {name: getattr(HERE, name) for name in HERE.__slots__} | other
    return " ".join(text for heading, text in version_findings(Installed(**fields)) if heading == "Versions")


def test_nothing_is_said_of_what_is_tested():
    assert sentences() == ""
    assert sentences(torch="2.6.0", python="3.11.0").count("is not tested") == 0
    assert sentences(torch="2.13.1", python="3.13.2") == ""


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"torch": "2.5.1+cu124"}, "torch 2.5.1+cu124 is not tested: 2.6 to 2.14 are."),
        ({"torch": "2.15.0"}, "torch 2.15.0 is not tested"),
        (
            {"torch": "2.7.0a0+79aa174.nv25.4"},
            "Before torch 2.11: DTensor convolves no image that is cut by its columns. In 12_hybrid cells",
        ),
        ({"python": "3.10.12"}, "Python 3.10.12 is not tested: 3.11 to 3.13 are."),
        ({"glibc": "2.17"}, "glibc 2.17 is too old"),
    ],
)
def test_what_is_not_tested_is_told(other: dict[str, str], said: str):
    assert said in sentences(**other)


def test_versions_are_compared_by_number():
    assert numbers("2.7.0a0+79aa17489c.nv25.4") == (2, 7, 0)
    assert numbers("2.10") > numbers("2.9.1")


def test_the_range_is_that_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={TESTED['Python'].oldest}"
    assert torch.__version__ in TESTED["torch"]


def test_what_an_older_torch_lacks_is_told_of_units_that_there_are():
    for lacking in OLDER_TORCH:
        assert numbers(lacking.below) > numbers(TESTED["torch"].oldest)
        # Invariant: the units named are those with cells that wait for this version, by `%%needs torch>=`.
        waiting = {
            path.stem
            for path in Places(ROOT).solutions.glob("*.py")
            if re.search(rf"^# %%needs torch>={lacking.below}\b", path.read_text(), re.MULTILINE)
        }
        assert set(lacking.units) == waiting


def test_torch_s_own_version_is_read_without_loading_torch():
    program = (
        "import sys; from course_lib.versions import installed; "
        "print(installed().torch, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [torch.__version__, "False"]


def test_a_site_s_own_build_is_found(tmp_path: Path, monkeypatch: Any):
    # Invariant: pip need not know of it.
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('loaded')\n")
    (package / "version.py").write_text("__version__ = '2.9.0a0+site'\ncuda = None\nhip = '6.4.0'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    here = installed()
    assert (here.torch, here.torch_for) == ("2.9.0a0+site", "ROCm 6.4.0")


def test_the_doctor_shows_versions_and_the_site_s_own_way_to_nodes(monkeypatch: Any):
    monkeypatch.setattr("course_lib.slurm.doctor.site_here", lambda: site_named("lonestar6"))
    monkeypatch.setattr("course_lib.slurm.doctor.shutil.which", lambda name: f"/bin/{name}")
    rows = dict(findings(look_around()))
    assert rows["torch"].startswith(torch.__version__)
    assert rows["To get one"] == "idev -p gpu-a100-dev -N 2 -n 6 -t 01:00:00"
