"""What happens to the files of a folder while a process works there, change by change."""

import fcntl
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from graders.grading.answer import PlainData

_MOST_DESCRIPTORS = 256
_SYNCS = (os.fsync, os.fdatasync) if hasattr(os, "fdatasync") else (os.fsync,)


class Watch:
    """Looks at a directory after every call that Python code makes into C, and notes each change.

    It cannot be taken off again, so it is for a process that ends soon. An event is one of
    {"files": {name: {"inode", "content"}}}: what is there from now on, as a process that is killed leaves it;
    {"synced": [inodes], "directory": bool}: these open files, or the directory, were sent to the disk;
    {"raised": text}: how it ended, if not well.
    """

    def __init__(self, directory: Path) -> None:
        self.events: list[dict[str, PlainData]] = []
        self._directory = directory
        self._files: dict[str, PlainData] | None = None
        self._told_which = False
        self._look()

    def run(self, body: Callable[[], PlainData]) -> None:
        """Run it; its error passes."""
        for sync in _SYNCS:
            setattr(os, sync.__name__, self._noting(sync))
        sys.setprofile(self._profile)
        try:
            body()
        finally:
            sys.setprofile(None)
            self._look()

    def _profile(self, _frame: Any, what: str, called: Any) -> None:
        if what == "c_call" and called in _SYNCS and not self._told_which:
            # Imported by its own name; Python does not tell with what it is called: any file that is open.
            self._note_sync(_open_files())
        elif what in ("c_return", "c_exception"):
            self._look()
            if what == "c_return" and called is os.sync:
                self._note_sync({self._directory.stat().st_ino, *self._inodes()})

    def _look(self) -> None:
        files = files_of(self._directory)
        if files == self._files:
            return
        self._files = files
        self.events.append({"files": files})
        at_once = _open_files(synchronous=True) & set(self._inodes())
        if at_once:
            self.events.append({"synced": sorted(at_once), "directory": False})

    def _noting(self, sync: Callable[[Any], None]) -> Callable[[Any], None]:
        """The function of `os`, which notes which file it is called with."""

        def noted(file: Any) -> None:
            self._note_sync({os.fstat(file if isinstance(file, int) else file.fileno()).st_ino})
            self._told_which = True
            try:
                sync(file)
            finally:
                self._told_which = False

        return noted

    def _note_sync(self, inodes: set[int]) -> None:
        self._look()
        self.events.append({"synced": sorted(inodes), "directory": self._directory.stat().st_ino in inodes})

    def _inodes(self) -> list[int]:
        return [file["inode"] for file in (self._files or {}).values()]


def _open_files(*, synchronous: bool = False) -> set[int]:
    """Inodes of all that this process has open, or of what is on the disk when a write returns (O_SYNC)."""
    inodes = set()
    for descriptor in range(_MOST_DESCRIPTORS):
        with suppress(OSError):
            if not synchronous or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DSYNC:
                inodes.add(os.fstat(descriptor).st_ino)
    return inodes


def files_of(directory: Path) -> dict[str, PlainData]:
    """Name -> inode and content of every file of a directory."""
    files: dict[str, PlainData] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            # A file may go between being listed and being read.
            with suppress(FileNotFoundError):
                if entry.is_file():
                    content = Path(entry.path).read_bytes()
                    files[entry.name] = {"inode": entry.inode(), "content": content}
    return files
