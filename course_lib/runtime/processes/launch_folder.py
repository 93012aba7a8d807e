"""The folder of one launch on one machine: what its ranks leave for the agent that holds them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """Names of the files."""

    path: Path

    @property
    def store(self) -> Path:
        """Through it the ranks of one machine find each other."""
        return self.path / "store"

    @property
    def rendezvous(self) -> Path:
        """The port of the server through which Horovod's ranks find each other."""
        return self.path / "rendezvous"

    def start(self, rank: int) -> Path:
        """What a rank in another environment is to do."""
        return self.path / f"start-{rank}"

    def call_log(self, rank: int) -> Path:
        return self.path / f"call-log-{rank}"

    def output(self, rank: int) -> Path:
        return self.path / f"output-{rank}"

    def result(self, rank: int) -> Path:
        return self.path / f"result-{rank}"

    def stack(self, rank: int) -> Path:
        """Where the rank writes the stack of its threads when asked, or when it crashes."""
        return self.path / f"stack-{rank}"

    def forget(self, rank: int) -> None:
        """Remove what a rank has left whose process has ended, before another takes its place."""
        for path in (self.call_log(rank), self.output(rank), self.result(rank), self.stack(rank)):
            path.unlink(missing_ok=True)

    def write(self, path: Path, content: bytes) -> None:
        """Write one of the files, whole or not at all: others may look at any moment."""
        draft = self.path / f"draft-{path.name}"
        draft.write_bytes(content)
        draft.rename(path)
