"""Answers to exercises of unit 01."""

import time
import timeit
from collections.abc import Callable

from tests.field.answers import field


@field("01_single_gpu", "measure_throughput", "timeit")
def by_timer(
    step: Callable[[], object], batch_size: int, warmup: int, steps: int, synchronize: Callable[[], None]
) -> float:
    def now() -> float:
        synchronize()
        return time.perf_counter()

    for _ in range(warmup):
        step()
    return batch_size * steps / timeit.Timer(step, timer=now).timeit(steps)
