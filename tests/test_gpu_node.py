"""`course gpu`: without a GPU it says so; all that it measures also runs here, small, on the CPU."""

import json
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import torch

from tests.sample_source import EFFORTS, NAME, SOURCE, write_unit
from workbook.gpu import checks
from workbook.gpu.checks import Check, gpu_tests, units_on_processes
from workbook.gpu.command import measured
from workbook.gpu.report import write_report
from workbook.gpu.sizes import SMALL
from workbook.paths import Places

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_what_it_needs() -> None:
    # Invariant: a sentence on stderr, nothing on stdout, and a status that is not 0.
    command = [sys.executable, "-m", "workbook.cli", "gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("course gpu needs a GPU, NVIDIA's or AMD's, and torch ")
    assert "course slurm render gpu" in done.stderr


def test_all_that_is_measured_is_written_down(tmp_path: Path) -> None:
    # Invariant: every subject is measured, here on the CPU; the page shows each table, and each failure.
    tables, failures = measured(CPU, 2, SMALL, ROOT / "solutions")
    assert failures == []
    checked = [Check("a_test", 1.0), Check("09_memory", 2.0, "the cell raised <ValueError>")]
    page = write_report(tmp_path, tables, checked, ["09_memory: the cell raised <ValueError>"])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found["measured"]) == ["steps", "peaks", "offload", "loader", "scaling"]
    assert [row["way"] for row in found["measured"]["offload"]] == ["kept", "HostOffload", "save_on_cpu"]
    assert [row["ranks"] for row in found["measured"]["scaling"]] == [1, 2]
    assert {row["device"] for row in found["measured"]["scaling"]} == {"cpu"}
    assert all(row["predicted (ms)"] > 0 for row in found["measured"]["steps"])
    assert all(row["tracked (GiB)"] > 0 for row in found["measured"]["peaks"])
    text = page.read_text()
    words = unescape(text)
    assert all(f"<h2>{table.title}</h2>" in words for table in tables)
    assert text.count("<img alt=") == len(tables)
    assert text.count("the cell raised &lt;ValueError&gt;") == 2


def test_what_cannot_be_measured_takes_nothing_along() -> None:
    # Invariant: a subject that fails is a sentence, and the others are measured.
    tables, failures = measured(CPU, 1, SMALL, ROOT / "nothing here")
    assert [table.name for table in tables] == ["steps", "peaks", "loader", "scaling"]
    assert failures[0].startswith("offload was not measured: ")


def test_tests_are_told_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    (tmp_path / "test_two.py").write_text(
        "import pytest\npytestmark = pytest.mark.gpu\n"
        "def test_right(): pass\ndef test_wrong(): assert 1 == 2\n"
        "def test_skipped(): pytest.skip('no second GPU')\n"
    )
    monkeypatch.setattr(checks, "TESTS", ("test_two.py",))
    right, wrong, skipped = gpu_tests(tmp_path)
    assert (right.what, right.said) == ("test_right", "")
    assert "assert 1 == 2" in wrong.said
    assert skipped.said == "no second GPU"


def test_a_pytest_that_does_not_start_is_told(tmp_path: Path) -> None:
    # Invariant: no tests is no success.
    (only,) = gpu_tests(tmp_path)
    assert only.what == "pytest"
    assert "test_gpu.py" in only.said


def test_all_tests_that_need_a_gpu_are_run() -> None:
    # Invariant: the files that `course gpu` names are those with the mark.
    marked = {path for path in (ROOT / "tests").glob("test_*.py") if "pytest.mark.gpu\n" in path.read_text()}
    assert {str(path.relative_to(ROOT)) for path in marked} == set(checks.TESTS)


def test_units_run_on_processes(tmp_path: Path) -> None:
    write_unit(tmp_path, SOURCE.replace("@ipywidgets.interact(n=(1, 10))\n", ""))
    told: list[str] = []
    (check,) = units_on_processes(Places(tmp_path), lambda name: EFFORTS, told.append)
    assert (check.what, check.said) == (NAME, "")
    assert Places.of_unit(tmp_path / "build" / "solved" / "processes", NAME).exists()
    assert told[0].startswith(f"{NAME}: executed (")
