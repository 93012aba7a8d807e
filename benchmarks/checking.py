"""Checking an answer in the notebook: every exercise of unit 02, with its solution; and a file at a shell."""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.measure import Row, at_most, median_seconds
from benchmarks.solutions import solution_of
from graders.grading.registry import exercises
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer

UNIT = "02_data_parallel"
SOLUTION = Path(__file__).parents[1] / "solutions" / f"{UNIT}.py"
SMALL = SOLUTION.with_name("00_hello_ranks.py")


def rows() -> Iterator[Row]:
    """The median over the exercises, and the slowest of them."""
    solved = solution_of(UNIT)
    times = {}
    for name, exercise in exercises(UNIT).items():
        answer = kernel_answer(solved[name], name)
        times[name] = median_seconds(partial(grade, exercise, answer), runs=5)
    yield at_most(f"check of an exercise of {UNIT}, median", statistics.median(times.values()), 0.3)
    slowest = max(times, key=lambda name: times[name])
    yield at_most(f"check of {slowest}, the slowest", times[slowest], 1.0)
    yield at_most("course check FILE, to import torch", statistics.median(_check_to_import()), 1.6)


def _check_to_import() -> Iterator[float]:
    """How many times as long a whole check takes as `import torch` right before it."""
    check = ["-m", "workbook.cli", "check", str(SMALL), "--json"]
    for _ in range(5):
        imported, checked = _seconds(["-c", "import torch"]), _seconds(check)
        yield checked / imported


def _seconds(arguments: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, cwd=SMALL.parents[1])
    return time.perf_counter() - begun
