"""The folder of one launch: what the launcher and its ranks leave for each other."""

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTPUT_BYTES = 1_000_000
"""So much of a rank's output is kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every rank needs to know before it can read its function."""

    ranks: int
    backend: str
    timeout: float
    seed: int
    threads: int
    environments: Mapping[int, dict[str, str]]
    """Each rank's environment variables; a node's copy of the plan has those of the rank there."""
    working_directory: str
    module_path: tuple[str, ...]
    program: tuple[str, ...]
    """`sys.argv` of the launcher."""
    sources: dict[str, Any]
    """Entries of `linecache` for code without a file, such as notebook cells."""
    meeting: tuple[str, int] | None = None
    """Host and port of the store through which ranks of several nodes meet; on one machine a file serves."""


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """Names of the files."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan"

    @property
    def function(self) -> Path:
        return self.path / "function"

    @property
    def store(self) -> Path:
        """Through it the ranks find each other."""
        return self.path / "store"

    @property
    def bell(self) -> Path:
        """A named pipe: a rank that has returned or failed writes a byte, so the launcher looks at once."""
        return self.path / "bell"

    def arguments(self, rank: int) -> Path:
        return self.path / f"arguments-{rank}"

    def call_log(self, rank: int) -> Path:
        return self.path / f"call-log-{rank}"

    def output(self, rank: int) -> Path:
        return self.path / f"output-{rank}"

    def result(self, rank: int) -> Path:
        return self.path / f"result-{rank}"

    def stack(self, rank: int) -> Path:
        """Where the rank writes the stack of its threads when asked, or when it crashes."""
        return self.path / f"stack-{rank}"

    def write_plan(self, plan: Plan) -> None:
        self.plan.write_bytes(pickle.dumps(plan))

    def read_plan(self) -> Plan:
        plan: Plan = pickle.loads(self.plan.read_bytes())
        return plan

    def ring(self) -> None:
        """Have the launcher look."""
        try:
            bell = os.open(self.bell, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            os.write(bell, b"!")
        except BlockingIOError:
            pass
        finally:
            os.close(bell)
