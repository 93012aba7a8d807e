"""The workbook's own solutions, which benchmarks set beside what a user would use instead."""

from pathlib import Path
from typing import Any

from graders.guest.run_cells import run_cells
from graders.submissions.read import read_submission


def solution_of(unit: str) -> dict[str, Any]:
    """The namespace that a unit's own cells leave behind, solutions included."""
    namespace: dict[str, Any] = {"__name__": "solution"}
    run_cells(read_submission(Path(__file__).parents[1] / "solutions" / f"{unit}.py").cells, namespace)
    return namespace
