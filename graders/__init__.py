"""The public graders: `check(answer)` in a notebook, `course check FILE` at a shell, and autograding."""

from graders.student.check_cell import check
from graders.student.hints import hint
from graders.student.predictions import predict
from graders.student.progress import progress
from graders.student.reset_cell import reset
from graders.student.use import use

__all__ = ["check", "hint", "predict", "progress", "reset", "use"]
