"""What a library's own function answers to an exercise, and what it earns.

A module of this folder decorates functions and classes:

    @field("11_compression", "fp16_hook", "fp16_compress_hook", lacks=["no overflow"])
    def fp16_compress(state, bucket): ...

`python -m tests.field UNIT [EXERCISE]` shows which rows each earns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from graders.grading.registry import exercises
from graders.grading.rng import Rng
from graders.grading.run import ExerciseResult, grade
from graders.student.kernel_answer import kernel_answer

Definition = TypeVar("Definition", bound=Callable[..., Any])


@dataclass(frozen=True)
class FieldAnswer:
    """An answer that hands its work to `library`, and the rows that it does not earn.

    beside: the recipe of `course beside` that has the library; empty for those of the workbook itself.
    """

    unit: str
    exercise: str
    library: str
    answer: Callable[..., Any]
    lacks: frozenset[str]
    beside: str = ""

    @property
    def name(self) -> str:
        return f"{self.exercise}-{self.library}"

    def graded(self, seed: int = 1) -> ExerciseResult:
        """The verdict of the exercise's grader, in this process."""
        exercise = exercises(self.unit)[self.exercise]
        return grade(exercise, kernel_answer(self.answer, exercise.name), Rng(seed))


ANSWERS: list[FieldAnswer] = []


def field(
    unit: str, exercise: str, library: str, lacks: Sequence[str] = (), beside: str = ""
) -> Callable[[Definition], Definition]:
    """The definition below answers an exercise by a library's name."""

    def register(answer: Definition) -> Definition:
        ANSWERS.append(FieldAnswer(unit, exercise, library, answer, frozenset(lacks), beside))
        return answer

    return register
