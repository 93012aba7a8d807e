"""What an answer raises in one of the cases that a row tries."""

from graders.grading.answer import AnswerFailed, FailureKind
from graders.grading.kit import Finding

_SLIPS = (
    "NameError",
    "UnboundLocalError",
    "ImportError",
    "ModuleNotFoundError",
    "AttributeError",
    "TypeError",
)
"""Errors that are about Python: they would come in every row."""


def raised_in(case: str, failure: AnswerFailed) -> Finding:
    """The failure as a finding of this case, so that the rows after it are judged. Raises the failure itself
    where it is no error of the answer's, or a slip.
    """
    if failure.kind is not FailureKind.RAISED or failure.error in _SLIPS:
        raise failure
    return Finding(False, f"{case}: {failure.report}")
