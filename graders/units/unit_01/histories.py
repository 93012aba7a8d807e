"""What `fit` returns: three numbers an epoch."""

from collections.abc import Sequence

from graders.grading.kit import Finding, compare
from graders.units.unit_01.courses import Course
from graders.units.unit_01.losses import float_near
from graders.units.unit_01.replies import FitReply

_NAMES = ("training loss", "validation loss", "validation accuracy")


def history_right(course: Course, seen: FitReply) -> Finding:
    """Passes if there are three floats for each epoch, and the right ones."""
    expected, _ = course.right
    if type(seen.history) is not list or len(seen.history) != len(expected):
        return Finding(False, f"fit returned {seen.history!r:.80}; expected a list with a tuple an epoch.")
    return compare.first_failure(
        [
            Finding(True, "all losses and accuracies are right."),
            *(
                _epoch_right(got, wanted, number)
                for number, (got, wanted) in enumerate(zip(seen.history, expected, strict=True))
            ),
        ]
    )


def _epoch_right(seen: object, expected: Sequence[float], epoch: int) -> Finding:
    if type(seen) is not tuple or len(seen) != len(_NAMES):
        return Finding(False, f"epoch {epoch} is {seen!r:.80}; expected a tuple of three floats.")
    return compare.first_failure(
        float_near(got, wanted, f"the {name} of epoch {epoch}")
        for name, got, wanted in zip(_NAMES, seen, expected, strict=True)
    )
