"""Forked processes of an answer that may end at any moment, and the files that they leave.

A process that is killed runs nothing more, no `except` and no `finally`. So the files that stand between two
of its calls are those that a kill there would leave; a limit on the size of files ends it within a call.
"""

import gc
import os
import resource
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from graders.grading.answer import PlainData
from graders.protocol.codec import CodecError, decode, encode
from graders.units.unit_03.folder_watch import Watch

RETURNED = "returned"

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


def watched(directory: Path, body: Body) -> Body:
    """`body`, with a record of what happened to the files of `directory` as its value. See `Watch`."""

    def recorded() -> PlainData:
        watch = Watch(directory)
        try:
            watch.run(body)
        except Exception as error:
            watch.events.append({"raised": in_words(error)})
        return watch.events

    return recorded
