"""Ways of one step that take turns in the same processes, so that what else the machine does hits all."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist

Step = Callable[[], object]


def in_turns(ways: Mapping[str, Step], turns: int, steps: int = 1) -> dict[str, float]:
    """Way -> median seconds of a step on this rank, without the first turn, which allocates.

    steps: how many of one way follow one another in a turn.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, step in ways.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            times[name] += [(time.perf_counter() - start) / steps] if turn else []
    return {name: statistics.median(of_way) for name, of_way in times.items()}


def of_slowest(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Way -> seconds of the rank that takes longest."""
    return {way: max(times[way] for times in results) for way in results[0]}
