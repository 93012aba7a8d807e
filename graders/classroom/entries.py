"""What the gradebook holds of a submission: verdicts, what people have changed, what being late costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from graders.grading.report import Report
from graders.grading.words import earned


@dataclass(frozen=True, slots=True)
class Entry:
    """The gradebook's numbers for one submission.

    points: what is exported, with what people gave and less the penalty. automatic, scores: points of each
    check cell, as graded and as they count. late: by how much the due date was missed.
    """

    points: float
    max_points: float
    automatic: Mapping[str, float | None] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    penalty: float = 0
    late: timedelta = timedelta()

    @property
    def by_hand(self) -> str:
        """`average_gradients 4 instead of 6 points`, for each exercise that a person has changed."""
        return ", ".join(
            f"{cell.removeprefix('check_')} {score:g} instead of {_points(self.automatic[cell] or 0)}"
            for cell, score in self.scores.items()
            if score != (self.automatic[cell] or 0)
        )

    @property
    def lateness(self) -> str:
        """`2 d 3 h, 21 points taken off`; empty if it came in time."""
        taken = f", {_points(self.penalty)} taken off" if self.penalty else ""
        return f"{_spoken(self.late)}{taken}" if self.late else taken.removeprefix(", ")

    @property
    def said(self) -> str:
        """In sentences, why it is not what the answers earned."""
        late = f"Late by {self.lateness}." if self.late else ""
        by_hand = f"By hand: {self.by_hand}." if self.by_hand else ""
        return f"{late} {by_hand}".strip()


def entry_of(submission: Any) -> Entry:
    """What an `nbgrader.api.SubmittedAssignment` has."""
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    penalty = submission.late_submission_penalty or 0
    return Entry(
        # As nbgrader exports it.
        max(0.0, submission.score - penalty),
        submission.max_score,
        {grade.cell.name: grade.auto_score for grade in grades},
        {grade.cell.name: grade.score for grade in grades},
        penalty,
        timedelta(seconds=submission.total_seconds_late),
    )


def points_in_words(report: Report, entry: Entry | None) -> str:
    """`0 of 21 points`: those of the gradebook, if it has any."""
    return earned(entry.points, entry.max_points) if entry else earned(report.points, report.max_points)


def _points(count: float) -> str:
    return f"{count:g} point{'' if count == 1 else 's'}"


def _spoken(duration: timedelta) -> str:
    """`3 d 2 h`, `5 min`, `20 s`: the two largest units."""
    minutes, seconds = divmod(int(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"
