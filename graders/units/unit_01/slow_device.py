"""A device that takes its time."""

import time

QUEUE_SECONDS = 0.001
"""What a call of `step` takes the program."""
STEP_SECONDS = 0.01
SLOW_STEP_SECONDS = 0.04


class SlowDevice:
    """A device that works off a queue, as a GPU does: `step` adds to it, `synchronize` waits for the end."""

    def __init__(self, slow_steps: int) -> None:
        """slow_steps: so many steps at first take much longer, as compiling and caching make them. Somebody
        else has queued a little work before.
        """
        self._slow_steps = slow_steps
        self._free_at = time.perf_counter() + SLOW_STEP_SECONDS
        self.calls: list[tuple[str, float, float]] = []
        """Name of the call, and the seconds at which it began and ended."""

    def step(self) -> None:
        started = time.perf_counter()
        slow = self.count("step") < self._slow_steps
        self._free_at = max(self._free_at, started) + (SLOW_STEP_SECONDS if slow else STEP_SECONDS)
        time.sleep(QUEUE_SECONDS)
        self.calls.append(("step", started, time.perf_counter()))

    def synchronize(self) -> None:
        started = time.perf_counter()
        time.sleep(max(0.0, self._free_at - started))
        self.calls.append(("synchronize", started, time.perf_counter()))

    def count(self, name: str) -> int:
        return sum(called == name for called, _, _ in self.calls)
