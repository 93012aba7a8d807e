"""Time limits on running code, by signals."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from course_lib.runtime.importing import TIMES_MORE, importing

ALARMS = frozenset({signal.SIGALRM, signal.SIGPROF})
"""The signals by which `time_limit` works."""

_AGAIN_SECONDS = 1.0


class OutOfTime(BaseException):
    """Raised in running code when its time is up; as text, the time that was up.

    No Exception, so that `except Exception` lets it pass.
    """


@contextmanager
def time_limit(seconds: float, computing_seconds: float = 0.0) -> Iterator[None]:
    """Raise OutOfTime in the code of this block after `seconds`, or after so much computing, if any.

    computing_seconds: of processor time. Importing a module does not count.

    Signals reach the main thread only, so there is no limit in any other. Code that swallows the exception,
    as Python does in weak references' callbacks, meets it again each second: whoever must be certain kills
    the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with (
        _alarm(signal.ITIMER_REAL, signal.SIGALRM, seconds, f"{seconds:g} s"),
        _alarm(
            signal.ITIMER_PROF, signal.SIGPROF, computing_seconds, f"{computing_seconds:g} s of computing"
        ),
    ):
        yield


@contextmanager
def _alarm(timer: int, signal_: signal.Signals, seconds: float, after: str) -> Iterator[None]:
    more = iter(range(TIMES_MORE))

    def ring(_signal: int, frame: FrameType | None) -> None:
        if importing(frame) and next(more, None) is not None:
            signal.setitimer(timer, seconds, _AGAIN_SECONDS)
        else:
            raise OutOfTime(after)

    before = signal.signal(signal_, ring)
    signal.setitimer(timer, seconds, _AGAIN_SECONDS if seconds else 0)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(signal_, before)
