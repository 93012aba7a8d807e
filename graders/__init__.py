"""The public graders: `check(answer)` in a notebook, `course check FILE` at a shell, and autograding."""

from graders.check import check
from graders.hints import hint
from graders.progress import progress
from graders.reset import reset

__all__ = ["check", "hint", "progress", "reset"]
