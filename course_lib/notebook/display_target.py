"""Who looks at the output of this process: a person at a notebook, a file, a terminal."""

import sys
from enum import Enum
from typing import Any

from IPython.core.getipython import get_ipython

from course_lib.runtime.communication.events import span_recorder


class DisplayTarget(Enum):
    """Where output goes, which decides what may move in it."""

    LIVE_NOTEBOOK = "a notebook with a person in front of it"
    BATCH_NOTEBOOK = "a notebook that papermill or nbconvert executes"
    TERMINAL = "a terminal"
    PLAIN = "a file, a pipe, or the captured output of a rank"


def display_target() -> DisplayTarget:
    """Where the output of the code that runs now goes.

    A front end with a person allows a cell to ask for input; nbclient, on which papermill, nbconvert and
    nbgrader stand, does not.
    """
    if span_recorder.get() is not None:
        return DisplayTarget.PLAIN
    shell: Any = get_ipython()
    if hasattr(shell, "kernel"):
        allows_input = getattr(shell.kernel, "_allow_stdin", False)
        return DisplayTarget.LIVE_NOTEBOOK if allows_input else DisplayTarget.BATCH_NOTEBOOK
    return DisplayTarget.TERMINAL if sys.stdout.isatty() else DisplayTarget.PLAIN
