"""What one rank leaves in the folder of its launch, as its agent passes it on."""

import os
from pathlib import Path

from course_lib.runtime.processes.launch_folder import LaunchFolder
from course_lib.runtime.processes.protocol import OUTPUT_BYTES, RankProgress
from course_lib.runtime.processes.stacks import read_stack

_CHUNK_BYTES = 1 << 20


class HeldRank:
    """What a rank has left in the folder, as far as the launcher knows it."""

    def __init__(self, rank: int, folder: LaunchFolder) -> None:
        self.rank = rank
        self._folder = folder
        self._log = _GrowingFile(folder.call_log(rank))
        # One byte more than is kept: it tells that there was more.
        self._output = _GrowingFile(folder.output(rank), OUTPUT_BYTES + 1)
        self._has_result = False

    def progress(self, exit_code: int | None) -> RankProgress | None:
        """What is new, with the exit code of the rank's process if that has ended; None if nothing is."""
        # In this order: a rank prints, then leaves its result, then says that it has.
        log, result, output = self._log.read(), self._fresh_result(), self._output.read()
        if exit_code is None:
            anything = log or output or result is not None
            return RankProgress(self.rank, log, output, result) if anything else None
        return RankProgress(
            self.rank, log, output, result, exit_code, read_stack(self._folder.stack(self.rank))
        )

    def _fresh_result(self) -> bytes | None:
        path = self._folder.result(self.rank)
        if self._has_result or not path.exists():
            return None
        self._has_result = True
        return path.read_bytes()


class _GrowingFile:
    """A file to which a rank appends. What is beyond `limit` bytes is not read and not kept."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path = path
        self._limit = limit
        self._file: int | None = None
        self._count = 0

    def read(self) -> bytes:
        """What has come since the last time."""
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        chunks = []
        while chunk := os.read(self._file, self._room()):
            chunks.append(chunk)
            self._count += len(chunk)
        if self._limit is not None and os.fstat(self._file).st_size > 2 * self._limit:
            os.truncate(self._path, self._limit)
        return b"".join(chunks)

    def _room(self) -> int:
        return _CHUNK_BYTES if self._limit is None else min(_CHUNK_BYTES, self._limit - self._count)
