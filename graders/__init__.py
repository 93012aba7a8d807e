"""The public graders: `check(answer)` in a notebook, `course check FILE` at a shell, and autograding."""
