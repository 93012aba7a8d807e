"""What libraries do by themselves earns all points but those of rows that ask for more, which say so.

The answers are in `tests/field`: PyTorch's own functions, and those of libraries beside the workbook.
"""

from collections.abc import Sequence

import pytest

from course_lib.beside import missing
from graders.grading.registry import exercises
from tests.field import answers, told, told_beside
from tests.field.answers import FieldAnswer


def marks(given: FieldAnswer) -> Sequence[pytest.MarkDecorator]:
    """A library beside the workbook grades all its answers in one process, for one worker."""
    if not given.beside:
        return ()
    sentence = missing(given.beside)
    return (
        pytest.mark.xdist_group(f"field {given.beside}"),
        pytest.mark.skipif(bool(sentence), reason=sentence or "it is there"),
    )


@pytest.mark.parametrize("given", [pytest.param(each, id=each.name, marks=marks(each)) for each in answers()])
def test_what_the_field_uses_earns_all_but_what_asks_for_more(given: FieldAnswer) -> None:
    exercise = exercises(given.unit)[given.exercise]
    seen = told_beside(given.beside)[given.name] if given.beside else told(given)
    failed = {row for row, (verdict, _) in seen.items() if verdict == "failed"}
    assert failed == given.lacks, seen
    assert exercise.rubric[0].name not in failed
    silent = [row.name for row in exercise.rubric if row.name in failed and given.library not in row.hint]
    assert silent == []
