"""How an answer's failure is told: its kind, what to look at, what to do about it, and a picture."""

import re
import sys

from course_lib.runtime.communication.errors import BufferInUse, NeverWaited
from graders.grading.answer import AnswerFailed, FailureKind
from graders.grading.exercise import Criterion
from graders.grading.kinds import HINTS, NOTHING_CAME, Kind
from graders.grading.text import shortened

SEEN_CHARACTERS = 4000
"""A longer story is cut: nobody reads it, and a submission could make it endless."""
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Terminal colours and the like."""


def readable(text: str) -> str:
    """A text that may hold anything, made fit to be shown: no control characters, no endless length."""
    text = _ESCAPES.sub("", text.encode("utf-8", "replace").decode("utf-8"))
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = "".join(c for c in text if c.isprintable() or c in "\n\t")
    return shortened(text, SEEN_CHARACTERS)


def hint_on(criterion: Criterion, kind: Kind, *, ordinary: bool) -> str:
    """The criterion's hint, and what to look at where nothing came out.

    ordinary: whether this is the rubric's first row, whose hint is about what comes out. The others name the
    case that they are tried on, and so why nothing came out in just this one.
    """
    if kind not in NOTHING_CAME:
        return criterion.hint
    return HINTS[kind] if ordinary else f"{criterion.hint} {HINTS[kind]}"


KINDS = {
    FailureKind.DEADLOCK: Kind.DEADLOCK,
    FailureKind.MISMATCH: Kind.MISMATCH,
    FailureKind.TIMED_OUT: Kind.TIMED_OUT,
}
_OTHER_KINDS = frozenset(
    {FailureKind.LEFT_OPEN, FailureKind.NOT_PLAIN, FailureKind.ENDED, FailureKind.UNREADABLE}
)
_SLIPS = frozenset({"NameError", "UnboundLocalError", "SyntaxError", "ImportError", "ModuleNotFoundError"})
_SLIPS |= {"AttributeError", "TypeError", BufferInUse.__name__, NeverWaited.__name__}
"""Errors that are about Python, or that say themselves what to do."""


_AFTER_A_RESTART = (
    "\nIf a cell above defines it, run that cell. After a restart of the kernel run all of them: "
    "Run > Run All Above Selected Cell."
)
_ADVICE = {
    "Group None is not registered": "A function that asks about a group does not take None for it: give it "
    "`group or dist.group.WORLD`.",
    "should not be the same as the rank of the current process": "Nobody sends to itself, or receives from "
    "itself: copy what a rank has for itself.",
    "is not part of group": "Here a rank of all ranks was expected. The place in a group is given by "
    "group_dst= and group_src=.",
}
"""What to do where an error of torch.distributed's does not say so, by a part of its text."""
_UNKNOWN_NAME = re.compile(r"NameError: name '(\w+)' is not defined")


def told(failure: AnswerFailed) -> str:
    """The failure's report, with advice."""
    return readable(advised(failure, failure.report))


def advised(failure: AnswerFailed, told: str) -> str:
    """What is told of a failure; where a name is unknown, with what to do about it."""
    for said, advice in _ADVICE.items():
        if said in failure.report:
            return f"{told}\n{advice}"
    if failure.error != "NameError":
        return told
    unknown = _UNKNOWN_NAME.search(failure.report)
    if unknown and unknown[1] in sys.stdlib_module_names:
        return f"{told}\n{unknown[1]} is a module of Python's: write `import {unknown[1]}`."
    return told + _AFTER_A_RESTART


def explains_itself(failure: AnswerFailed) -> bool:
    """Whether a criterion's hint would be beside the point."""
    of_groups = failure.kind is FailureKind.MISMATCH and ": new_group(" in failure.report
    return failure.kind in _OTHER_KINDS or failure.error in _SLIPS or of_groups


def figure(failure: AnswerFailed) -> str:
    """Who waited for whom, drawn, if the answer came to a deadlock."""
    if failure.deadlock is None:
        return ""
    try:
        # Imported here: nobody whose answer ends needs matplotlib.
        from course_lib.figures.deadlock import deadlock_figure
        from course_lib.figures.style import figure_html

        return figure_html(deadlock_figure(failure.deadlock.wait_graph))
    except Exception:  # the calls come from the answer's process: what cannot be drawn is told in words
        return ""
