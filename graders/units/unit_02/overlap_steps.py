"""When the buckets of a step set off: marks and calls of each step."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from course_lib.runtime.communication.events import Event, Kind
from graders.grading.answer import Observed
from graders.grading.exercise import Finding
from graders.units.unit_02 import drivers as drivers
from graders.units.unit_02.overlap import (
    Training,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank, from the driver's mark "step begins" to its mark "finished"."""

    rank: int
    number: int
    calls: list[Event]
    marks: dict[str, Event]
    """The first mark of each label."""

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.number}"


def _steps(observed: Observed) -> Iterator[Step]:
    """Every step of every rank."""
    for rank in range(len(observed.results)):
        calls = observed.communication(rank)
        marks = [event for event in observed.events if event.rank == rank and event.kind is Kind.SPAN]
        begins = [position for position, mark in enumerate(marks) if mark.op == "step begins"]
        for number, (begin, end) in enumerate(pairwise([*begins, len(marks)])):
            # Reversed, so that of several marks with one label the first stays.
            inside = {mark.op: mark for mark in reversed(marks[begin:end])}
            span = range(marks[begin].sequence, inside["finished"].sequence)
            yield Step(rank, number, [call for call in calls if call.sequence in span], inside)


def starts_during_backward(training: Training, observed: Observed) -> Finding:
    """Passes if on every rank, in every step, each bucket set off as soon as its gradients were complete."""
    deadlines = training.deadlines()
    for step in _steps(observed):
        if drivers.reaches(0) not in step.marks:
            return Finding(False, f"{step}: backward did not go through the model that was wrapped.")
        for number, deadline in enumerate(deadlines, start=1):
            made = sum(call.sequence < step.marks[deadline].sequence for call in step.calls)
            if made < number:
                text = (
                    f"when {deadline}, {number} of {len(deadlines)} buckets are complete and {made} started"
                )
                return Finding(False, f"{step}: {text}.")
    return Finding(True, "Every bucket sets off as soon as its gradients are complete, on every rank.")


def never_waits_in_backward(observed: Observed) -> Finding:
    """Passes if backward ended before the first all_reduce of its step did, on a slow link."""
    for step in _steps(observed):
        first = min((call.end for call in step.calls), default=float("inf"))
        late = step.marks["backward ends"].end - first
        if late >= 0:
            text = f"backward ended {late:.1f} s after the first all_reduce, so it waited for it"
            return Finding(False, f"{step}: {text}.")
    return Finding(True, "Backward ends while the first all_reduce is still under way.")
