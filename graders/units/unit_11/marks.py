"""The driver's marks on the timeline, by which steps are told from one another."""

from typing import Any

from course_lib.runtime.communication.events import Kind
from graders.grading.kit import Finding, Observed


def own_marks(run: Observed[Any], steps: int, *labels: str) -> Finding:
    """Passes if each rank has as many marks of each label as steps: the driver's, and no others."""
    for rank in range(len(run.results)):
        found = [event.op for event in run.events if event.rank == rank and event.kind is Kind.SPAN]
        for label in labels:
            if found.count(label) != steps:
                said = f"rank {rank} has {found.count(label)} marks {label!r}"
                return Finding(False, f"{said} in {steps} steps: leave them to the grader.")
    return Finding(True, "no marks but the grader's.")
