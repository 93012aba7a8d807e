"""`hash` as processes have it that are started one by one: what it makes of a text differs between them."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from graders.grading.answer import AnswerFunction

_lock = threading.Lock()
_inside: Counter[int] = Counter()
"""How many ranks are inside, by the id of the names that the answer looks things up in."""


@contextmanager
def hashes_salted(answer: AnswerFunction, salt: Callable[[], int]) -> Iterator[None]:
    """Let `hash`, where the answer's cells call it, depend on `salt()` for texts and what holds texts.

    Python salts these at the start of each process, so that no two ranks agree on them, nor a process and
    the one that goes on for it. Simulated ranks share a process, and forks its salt.
    """
    names = getattr(answer, "__globals__", None)
    if names is None or ("hash" in names and not _inside[id(names)]):
        yield
        return
    with _lock:
        _inside[id(names)] += 1
        names["hash"] = lambda value: hash((value, salt())) if _has_text(value) else hash(value)
    try:
        yield
    finally:
        with _lock:
            _inside[id(names)] -= 1
            if not _inside[id(names)]:
                del names["hash"], _inside[id(names)]


def _has_text(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return any(map(_has_text, value))
    return isinstance(value, str | bytes)
