"""Checking an answer in the notebook: every exercise of unit 02, with its solution."""

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, at_most, median_seconds
from graders.grading.registry import exercises
from graders.grading.run import grade
from graders.guest.run_cells import run_cells
from graders.student.kernel_answer import kernel_answer
from graders.submissions.read import read_submission

UNIT = "02_data_parallel"
SOLUTION = Path(__file__).parents[1] / "solutions" / f"{UNIT}.py"


def rows() -> Iterator[Row]:
    """The median over the exercises, and the slowest of them."""
    solved: dict[str, Any] = {"__name__": "solution"}
    run_cells(read_submission(SOLUTION).cells, solved)
    times = {}
    for name, exercise in exercises(UNIT).items():
        answer = kernel_answer(solved[name], name)
        times[name] = median_seconds(partial(grade, exercise, answer), runs=5)
    yield at_most(f"check of an exercise of {UNIT}, median", statistics.median(times.values()), 0.3)
    slowest = max(times, key=lambda name: times[name])
    yield at_most(f"check of {slowest}, the slowest", times[slowest], 1.0)
