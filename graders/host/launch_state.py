"""What the ranks of a launch come to, as far as the grader has seen."""

from course_lib.runtime.communication.errors import RankTraceback
from course_lib.runtime.communication.events import SourceLine
from graders.grading.answer import FailureKind, PlainData

MOST_CALLS = 200_000
"""Of all ranks of a launch."""


class RankBroken(Exception):
    """A rank did not keep to its part. kind: as in AnswerFailed. The message follows after "rank 2 "."""

    def __init__(self, rank: int, kind: FailureKind, what: str) -> None:
        super().__init__(what)
        self.rank = rank
        self.kind = kind


class LaunchState:
    """What the ranks come to."""

    def __init__(self, ranks: int) -> None:
        self.results: list[PlainData] = [None] * ranks
        self.outputs = [""] * ranks
        self.failures: list[RankTraceback] = []
        self.places: dict[int, list[SourceLine]] = {}
        """Where the rank was that ran when the time was up."""
        self.broken: list[RankBroken] = []
        """What makes the whole launch void, first things first."""
        self.calls_left = MOST_CALLS
