"""The folder of one launch on one machine: what its ranks leave for the agent that holds them."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "course-launch-"
_LOCK = "owner"
_YOUNG_SECONDS = 60.0
"""So old a folder must be before it counts as left behind: its owner may be about to lock it."""


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """Names of the files."""

    path: Path

    @property
    def store(self) -> Path:
        """Through it the ranks of one machine find each other."""
        return self.path / "store"

    def call_log(self, rank: int) -> Path:
        return self.path / f"call-log-{rank}"

    def output(self, rank: int) -> Path:
        return self.path / f"output-{rank}"

    def result(self, rank: int) -> Path:
        return self.path / f"result-{rank}"

    def stack(self, rank: int) -> Path:
        """Where the rank writes the stack of its threads when asked, or when it crashes."""
        return self.path / f"stack-{rank}"


@contextmanager
def owned_folder(parent: str | None = None) -> Iterator[Path]:
    """A folder for this user alone, which goes with the block, or by `sweep` if its owner is killed.

    parent: by default where temporary files go.
    """
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # Processes that the owner forks hold it too; the kernel lets go of it when the last has ended.
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # The sandbox of a grading shuts locks; there the folder goes with the sandbox.
    with suppress(PermissionError):
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep(parent: str | None = None) -> None:
    """Remove the folders that killed processes of this user have left behind."""
    for path in Path(parent or tempfile.gettempdir()).glob(_PREFIX + "*"):
        # Whatever is wrong with one of them, it is not worth a launch.
        with suppress(OSError):
            if _is_left_behind(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_left_behind(path: Path) -> bool:
    """Whether a folder is this user's, and no process holds it."""
    about = path.lstat()
    if path.is_symlink() or about.st_uid != os.getuid() or time.time() - about.st_mtime < _YOUNG_SECONDS:
        return False
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
