"""What must hold on a node with GPUs: the tests that need one, and all units with real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from workbook.build import Efforts, parameters_of
from workbook.execute import ExecutionFailed, execute
from workbook.paths import Places
from workbook.release import write_source
from workbook.unit import Unit, read_units

TESTS = ("tests/test_gpu.py", "tests/test_gpu_ranks.py", "tests/test_host_memory.py")
"""Files that have tests with the mark `gpu`."""

_CORES_A_UNIT = 3
"""A unit computes with two to four ranks, and waits in between."""


@dataclass(frozen=True, slots=True)
class Check:
    """Something that has to go well. said: what went wrong; empty if nothing did."""

    what: str
    seconds: float
    said: str = ""


def gpu_tests(root: Path) -> list[Check]:
    """Run pytest on the tests that need a GPU; a check a test."""
    began = time.perf_counter()
    with TemporaryDirectory(prefix="course-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", f"--junitxml={report}", *TESTS]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        found = list(_cases(report)) if report.exists() else []
    if not found or (done.returncode and not any(check.said for check in found)):
        said = (done.stdout + done.stderr).strip() or f"exit status {done.returncode}, and nothing said"
        found.append(Check("pytest", time.perf_counter() - began, said[-2000:]))
    return found


def _cases(report: Path) -> Iterator[Check]:
    """The tests of a report in JUnit's format, which pytest has written itself."""
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = [child for child in case if child.tag in ("failure", "error", "skipped")]
        said = " ".join(child.get("message") or child.tag for child in wrong)
        yield Check(case.get("name", ""), float(case.get("time", 0)), said)


def units_on_processes(places: Places, efforts: Efforts, told: Callable[[str], object]) -> list[Check]:
    """Execute every unit's solutions with `on="processes"`, several units at a time."""
    units = read_units(places.solutions)
    for unit in units:
        write_source(unit, efforts(unit.name), places)

    def executed(unit: Unit) -> Check:
        began, said = time.perf_counter(), ""
        *_, parameters = parameters_of(unit).values()
        output = places.of_unit(places.solved / str(parameters.get("on", "once")), unit.name)
        try:
            execute(places.of_unit(places.source, unit.name), output, parameters)
        except ExecutionFailed as error:
            said = str(error)
        check = Check(unit.name, time.perf_counter() - began, said)
        told(f"{unit.name}: {check.said or 'executed'} ({check.seconds:.0f} s)")
        return check

    # The units with the longest source first: one that takes long and begins last keeps all others waiting.
    by_length = sorted(
        units, key=lambda unit: sum(len(cell.source) for cell in unit.notebook.cells), reverse=True
    )
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // _CORES_A_UNIT)) as pool:
        found = {check.what: check for check in pool.map(executed, by_length)}
    return [found[unit.name] for unit in units]
