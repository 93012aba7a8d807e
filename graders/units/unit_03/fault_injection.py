"""Forked processes of an answer that may end at any moment, and the files that they leave.

A process that is killed runs nothing more, no `except` and no `finally`. So the files that stand between two
of its calls are those that a kill there would leave; a limit on the size of files ends it within a call.
"""

import errno
import fcntl
import gc
import os
import resource
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from graders.grading.answer import PlainData
from graders.protocol.codec import CodecError, decode, encode

RETURNED = "returned"

_MOST_DESCRIPTORS = 256
_SYNC_NAMES = ("fsync", "fdatasync") if hasattr(os, "fdatasync") else ("fsync",)
"""Functions of `os` that send a file to the disk."""
_SYNCS = tuple(getattr(os, name) for name in _SYNC_NAMES)

Body = Callable[[], PlainData]


def run_forked(body: Body) -> PlainData:
    """What came of `body()` in a process of its own: {"ended", "value"}.

    ended: "returned", the error in words, or the name of the signal that killed it. value: what it returned.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; the child calls nothing that another thread may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(body, writing)
    os.close(writing)
    status = 0
    try:
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
    finally:
        # Does nothing to one that has ended, and ends one whose time is up.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return decode(told) if told else {"ended": _how(status), "value": None}


def _child(body: Body, pipe: int) -> NoReturn:
    """In the child: run, tell what came of it, and end without a trace in the parent's files and threads."""
    # A collection would touch, and so copy, all of the parent's memory.
    gc.freeze()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    told: PlainData
    try:
        told = {"ended": RETURNED, "value": body()}
    except BaseException as error:  # sys.exit() in an answer must not run the parent's exit handlers here
        told = {"ended": in_words(error), "value": None}
    try:
        message = encode(told)
    except CodecError as error:
        message = encode({"ended": in_words(error), "value": None})
    with os.fdopen(pipe, "wb") as file:
        file.write(message)
        file.flush()
    os._exit(0)


def in_words(error: BaseException) -> str:
    """An exception on one line: OSError: [Errno 27] File too large."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def with_short_files(nbytes: int, body: Body, *, deadly: bool) -> Body:
    """`body`, with no room in a file beyond `nbytes`: a write that comes there fails, or ends the process."""

    def limited() -> PlainData:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
        return body()

    return limited


def with_no_more_files(body: Body) -> Body:
    """`body`, and every attempt to open a file fails: OSError, EMFILE."""

    def limited() -> PlainData:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        return body()

    return limited


def with_failing_syncs(body: Body, *, of_folders: bool) -> Body:
    """`body`, and files, or folders, cannot be sent to the disk: OSError, EIO. Its value is "untried" if it
    sends none by a function of `os`.
    """

    def limited() -> PlainData:
        called = False

        def failing(sync: Callable[[Any], None]) -> Callable[[Any], None]:
            def fails(file: Any) -> None:
                nonlocal called
                if (
                    stat.S_ISDIR(os.stat(file if isinstance(file, int) else file.fileno()).st_mode)
                    != of_folders
                ):
                    return sync(file)
                called = True
                raise OSError(errno.EIO, os.strerror(errno.EIO))

            return fails

        for name in _SYNC_NAMES:
            setattr(os, name, failing(getattr(os, name)))
        body()
        return "tried" if called else "untried"

    return limited


def watched(directory: Path, body: Body, *, last_change: int | None = None) -> Body:
    """`body`, with a record of what happened to the files of `directory` as its value. See `Watch`.

    last_change: kill the process by SIGKILL at once after this change, counted from 1.
    """

    def recorded() -> PlainData:
        watch = Watch(directory, last_change)
        try:
            watch.run(body)
        except Exception as error:
            watch.events.append({"raised": in_words(error)})
        return watch.events

    return recorded


class Watch:
    """Looks at a directory after every call that Python code makes into C, and notes each change.

    It cannot be taken off again, so it is for a process that ends soon. An event is one of
    {"files": {name: {"inode", "content"}}}: what is there from now on, as a process that is killed leaves it;
    {"synced": [inodes], "directory": bool}: these open files, or the directory, were sent to the disk;
    {"renamed": [source, target]}: about to happen, whichever function does it;
    {"raised": text}: how it ended, if not well.
    """

    def __init__(self, directory: Path, last_change: int | None) -> None:
        self.events: list[dict[str, PlainData]] = []
        self._directory = directory
        self._last_change = last_change
        self._changes = -1
        self._files: dict[str, PlainData] | None = None
        self._told_which = False
        self._look()

    def run(self, body: Body) -> None:
        """Run it; its error passes."""
        sys.addaudithook(self._audit)
        for name in _SYNC_NAMES:
            setattr(os, name, self._noting(getattr(os, name)))
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            body()
        finally:
            sys.setprofile(None)
            self._look()

    def _profile(self, _frame: Any, what: str, called: Any) -> None:
        if what == "c_call" and called in _SYNCS and not self._told_which:
            self._note_sync(open_files())
        elif what in ("c_return", "c_exception"):
            self._look()
            if what == "c_return" and called is os.sync:
                self.events.append({"synced": [file["inode"] for file in self._now()], "directory": True})

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename":
            paths = zip(arguments[:2], arguments[2:4], strict=True)
            self.events.append({"renamed": [_path_from(*each) for each in paths]})

    def _look(self) -> None:
        files = files_of(self._directory)
        if files == self._files:
            return
        self._files = files
        self._changes += 1
        self.events.append({"files": files})
        at_once = {file["inode"] for file in self._now()} & open_files(synchronous=True)
        if at_once:
            self.events.append({"synced": sorted(at_once), "directory": False})
        if self._changes == self._last_change:
            os.kill(os.getpid(), signal.SIGKILL)

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
        """inodes: what is sent to the disk. Of a function that was imported by its own name Python tells that
        it is called, not with what: then these are all files that are open.
        """
        self._look()
        self.events.append({"synced": sorted(inodes), "directory": self._directory.stat().st_ino in inodes})

    def _now(self) -> list[dict[str, PlainData]]:
        return list((self._files or {}).values())


def open_files(*, synchronous: bool = False, no_folders: bool = False) -> set[int]:
    """Inodes of all files and directories that this process has open, or of those whose bytes are on the disk
    when a write returns, or of files alone.
    """
    inodes = set()
    for descriptor in range(_MOST_DESCRIPTORS):
        with suppress(OSError):
            if not synchronous or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DSYNC:
                status = os.fstat(descriptor)
                if not (no_folders and stat.S_ISDIR(status.st_mode)):
                    inodes.add(status.st_ino)
    return inodes


def _path_from(path: str | bytes, folder: int) -> str:
    """The absolute path of a name that counts from a folder's descriptor; -1: from the working directory."""
    base = os.getcwd() if folder < 0 else os.readlink(f"/proc/self/fd/{folder}")
    return os.path.abspath(os.path.join(base, os.fsdecode(path)))


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
