"""Clocks that somebody sets while they run: those that show the time of day."""

import datetime
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest import mock

from graders.grading.answer import AnswerFunction


@contextmanager
def set_back(answer: AnswerFunction) -> Iterator[None]:
    """Let the time of day go back by a second each time that the answer asks for it, by whatever name."""
    seconds = count(time.time(), -1)

    class SetBack(datetime.datetime):
        """What is now is what that clock shows."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return cls.fromtimestamp(next(seconds), tz)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.UTC).replace(tzinfo=None)

    clocks: dict[Any, Any] = {
        time.time: seconds.__next__,
        time.time_ns: lambda: int(next(seconds) * 1e9),
        datetime.datetime: SetBack,
    }
    names = getattr(answer, "__globals__", {})
    # Of what cells have imported by name, too: `from time import time`.
    own = {
        name: clocks[each]
        for name, each in names.items()
        if isinstance(each, type | _BUILTIN) and each in clocks
    }
    with ExitStack() as put_back:
        for clock, other in clocks.items():
            put_back.enter_context(mock.patch.object(_HOME[clock], clock.__name__, other))
        put_back.enter_context(mock.patch.dict(names, own))
        yield


_BUILTIN = type(time.time)
_HOME: dict[Any, Any] = {time.time: time, time.time_ns: time, datetime.datetime: datetime}
"""The module of each clock."""
