"""A program such as mpirun, of which nothing is left when it has ended, or when this process has."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile

from course_lib.runtime.processes import process_tree

_ENDING_SECONDS = 5.0


def run_guarded(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Run a program in a session of its own; returns its exit status, and all that it said.

    Raises subprocess.TimeoutExpired if it takes longer than `seconds`.
    """
    guard = [sys.executable, "-I", process_tree.__file__, str(_ENDING_SECONDS)]
    with TemporaryFile() as said:
        process = subprocess.Popen(
            [*guard, *command],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            env=environment,
            # Ctrl-C in a terminal and an interrupt from Jupyter are for the launching process alone.
            start_new_session=True,
        )
        assert process.stdin is not None
        # The guard ends the program, and all that it has started, when its standard input ends: here, or with
        # this process.
        with process, process.stdin:
            status = process.wait(seconds)
        said.seek(0)
        return status, said.read().decode(errors="replace")
