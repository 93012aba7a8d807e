"""What an answer raises in one of the cases that a row tries."""

from collections.abc import Callable

from graders.grading.answer import AnswerFailed, FailureKind
from graders.grading.kit import Finding

_OF_THE_ANSWER = {FailureKind.RAISED, FailureKind.RANK_FAILED}
_SLIPS = (
    "NameError",
    "UnboundLocalError",
    "ImportError",
    "ModuleNotFoundError",
    "AttributeError",
    "TypeError",
)
"""Errors that are about Python: they would come in every row, if not in one before."""


def raised_in(case: str, failure: AnswerFailed, ran_before: bool = False) -> Finding:
    """The failure as a finding of this case, so that the rows after it are judged. Raises the failure itself
    where it is no error of the answer's, or a slip. ran_before: whether it is none, since the answer has come
    through another case.
    """
    if failure.kind not in _OF_THE_ANSWER or (failure.error in _SLIPS and not ran_before):
        raise failure
    return Finding(False, f"{case}: {failure.report}")


def tried_in(case: str, look: Callable[[], Finding]) -> Finding:
    """What a look at the answer finds in a case; it has come through another one, so no error is a slip."""
    try:
        return look()
    except AnswerFailed as failure:
        return raised_in(case, failure, ran_before=True)


def on_a_gpu(look: Callable[[], Finding]) -> Finding:
    """What a look at the answer on a GPU finds."""
    return tried_in("On a GPU", look)
