"""The commands of an install: watched, written to a log, and ended together with it."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from course_lib.beside.recipes import BesideFailed

Tell = Callable[[str, int | None], None]
"""What is being done, and how much of it is done in per cent; None where that is not known."""

_NOTHING: Mapping[str, str] = {}
_LOOK_SECONDS = 0.5
_SHORT, _LONG = 20_000, 2_000_000
_PERCENT = re.compile(r"\[ *(\d+)%\]")
"""CMake's."""

_CAUSES = (
    ("No space left on device", "The disk is full."),
    (
        "fatal error: Killed|Killed signal|annot allocate memory",
        "Memory ran out: close other programs, or ask for more.",
    ),
    (
        "Python.h: No such file",
        "Python's headers are missing. On Debian or Ubuntu: apt-get install python3-dev.",
    ),
    ("No module named pip", "This environment has no pip: `python -m ensurepip` adds it."),
    (
        "Temporary failure in name resolution|NewConnectionError|No matching distribution found",
        "Is there a network here? On a cluster, that is often on login nodes only.",
    ),
)
"""What the log of a failed command says, as a pattern, and what it means."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Runs commands. `log` gets what they say, `scratch` is their folder for temporary files.

    environment: variables that all of them get, beside those of this process.
    """

    log: Path
    scratch: Path
    tell: Tell
    environment: Mapping[str, str]

    def pip(
        self, what: str, python: Path, arguments: Sequence[str], environment: Mapping[str, str] = _NOTHING
    ) -> None:
        """Run pip for the environment of this Python; see `run`."""
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        self.run(what, [*pip, *arguments], environment)

    def run(self, what: str, command: Sequence[str], environment: Mapping[str, str] = _NOTHING) -> None:
        """Run a command, with these variables too. Raises BesideFailed unless it returns 0.

        What it has started ends with it, also where this is interrupted.
        """
        self.tell(what, None)
        with self.log.open("ab") as log:
            start = log.tell()
            process = subprocess.Popen(
                command,
                cwd=self.scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": str(self.scratch), **self.environment, **environment},
                start_new_session=True,
            )
            try:
                self._watch(what, process, start)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode != 0:
            raise BesideFailed(f"{what} failed (exit status {process.returncode}). {self._why(start)}")

    def _watch(self, what: str, process: "subprocess.Popen[bytes]", start: int) -> None:
        while True:
            try:
                process.wait(_LOOK_SECONDS)
                return
            except subprocess.TimeoutExpired:
                seen = _PERCENT.findall(self._tail(start, _SHORT))
                self.tell(what, int(seen[-1]) if seen else None)

    def _tail(self, start: int, size: int) -> str:
        """The last `size` bytes of what has been written to the log since it had `start` of them."""
        with self.log.open("rb") as log:
            log.seek(max(start, self.log.stat().st_size - size))
            return log.read().decode(errors="replace")

    def _why(self, start: int) -> str:
        """A sentence on the cause, if it is a known one, and the lines of the log that tell most."""
        tail = self._tail(start, _LONG)
        known = [sentence for pattern, sentence in _CAUSES if re.search(pattern, tail)]
        lines = [line for line in tail.splitlines() if line.strip()]
        # What a compiler finds first explains the rest.
        telling = [line for line in lines if re.search(r"\berror:", line, re.IGNORECASE)][:5] or lines[-5:]
        return "\n".join([" ".join([*known[:1], f"The log is {self.log}; it says:"]), *telling])
