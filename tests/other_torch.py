"""All units, their solutions and the tests of what touches PyTorch most, on a PyTorch that others have.

`make test-torch TORCH=2.6.0` calls it, when it has set up the environment beside this one.
"""

import os
import subprocess
import sys
from pathlib import Path

from course_lib.beside import interpreter

ROOT = Path(__file__).parents[1]

TESTS = (
    "check",
    "devices",
    "engines_agree",
    "gpu",
    "magics",
    "memory",
    "processes",
    "shape_only",
    "simulator",
    "staying",
    "streams",
    "timing",
    "trace",
)
"""Launching, the simulator and grading. All solutions are graded with the units."""


def main(version: str, jobs: str, *units: str) -> int:
    """The exit status: 0 if all went well.

    version: such as "2.6.0". jobs: how many things run at a time. units: where not all are meant.
    """
    python = str(interpreter(f"torch-{version}"))
    # What Jupyter looks for in its environment's folder is in that of the workbook.
    environment = os.environ | {"JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter")}
    tests = [f"tests/test_{name}.py" for name in TESTS]
    for command in (
        ["workbook.cli", "workbook", "--jobs", jobs, *units],
        ["pytest", "-n", jobs, "--dist", "loadgroup", *tests],
    ):
        done = subprocess.run([python, "-m", *command], cwd=ROOT, env=environment, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
