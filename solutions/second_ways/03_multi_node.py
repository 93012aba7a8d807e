"""Second ways to do exercises of unit 03, shown once they are solved. Each docstring says how it differs."""

import math


def checkpoint_interval(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """No formula: looks for the interval with the least waste, by golden section, then by Newton's method."""
    mean_time = mean_time_between_failures / nodes

    def waste(logarithm):
        interval = math.exp(logarithm)
        return checkpoint_seconds / interval + interval / (2 * mean_time)

    low, high = 0.0, math.log(10 * (mean_time + checkpoint_seconds))
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        lower, upper = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, upper) if waste(lower) < waste(upper) else (lower, high)
    # A minimum is flat: the search comes near it, Newton's method for the derivative comes close.
    interval = math.exp((low + high) / 2)
    for _ in range(3):
        interval = (interval + 2 * checkpoint_seconds * mean_time / interval) / 2
    return interval


def elastic_batch(global_batch, world_size, rank):
    """Deals the positions out like cards, so that no two ranks differ by more than one."""
    part = range(rank, global_batch, world_size)
    return part, len(part) / (global_batch / world_size)
