"""All that a section of a unit needs from the author's kit, in one place to import from."""

from course_lib.runtime.request import per_rank
from graders.grading import communication, compare
from graders.grading.answer import Answer, AnswerFailed, FailureKind, Observed, PlainData
from graders.grading.exercise import Criterion, Finding, Findings, MachineLacks, exercise
from graders.grading.kinds import Kind
from graders.grading.rng import Rng

__all__ = [
    "Answer",
    "AnswerFailed",
    "Criterion",
    "FailureKind",
    "Finding",
    "Findings",
    "Kind",
    "MachineLacks",
    "Observed",
    "PlainData",
    "Rng",
    "communication",
    "compare",
    "exercise",
    "per_rank",
]
