"""When calls are over of which nothing tells the process, such as those on a GPU: asked again and again."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

_PAUSE_SECONDS = 0.0005


class CompletionPoller:
    """Watches handles of calls from a thread of its own, which starts with the first."""

    def __init__(self, on_completed: Callable[[int], None]) -> None:
        self._on_completed = on_completed
        self._incoming: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._open = 0
        """How many calls are watched; ranks' threads count up, this one's down."""

    def watch(self, number: int, work: Any) -> None:
        """Call on_completed(number) when the work is over."""
        with self._lock:
            self._open += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._poll, name="completion poller", daemon=True)
                self._thread.start()
        self._incoming.put((number, work))

    def drain(self, seconds: float = 1.0) -> None:
        """Return when all that was watched is over, or after that many seconds."""
        deadline = time.monotonic() + seconds
        while self._open and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)

    def _poll(self) -> None:
        watched: list[tuple[int, Any]] = []
        while True:
            if not watched:
                watched.append(self._incoming.get())
            while not self._incoming.empty():
                watched.append(self._incoming.get())
            over = [number for number, work in watched if work.is_completed()]
            for number in over:
                self._on_completed(number)
                with self._lock:
                    self._open -= 1
            watched = [each for each in watched if each[0] not in over]
            time.sleep(_PAUSE_SECONDS)
