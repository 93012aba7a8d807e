"""What failures and checkpoints cost a long training: the expectation in closed form, and drawn at random.

Work is cut into pieces, each followed by a checkpoint; a failure in either costs both, and a restart.
Failures come independently of each other, with one mean time between them (a Poisson process), also while
restarting. J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
Generation Computer Systems 22(3), 2006.
"""

import math

import torch


def expected_overhead(
    interval: float, checkpoint_seconds: float, failure_seconds: float, restart_seconds: float = 0.0
) -> float:
    """How much longer a training takes than its work alone: 0.1 is a tenth longer.

    interval: seconds of work between two checkpoints. failure_seconds: mean time between failures of the job.
    """
    piece = (interval + checkpoint_seconds) / failure_seconds
    return failure_seconds * math.exp(restart_seconds / failure_seconds) * math.expm1(piece) / interval - 1


def drawn_overhead(
    interval: float,
    checkpoint_seconds: float,
    failure_seconds: float,
    restart_seconds: float = 0.0,
    *,
    pieces: int = 1000,
    seed: int = 0,
) -> float:
    """The same of one training of so many pieces, whose failures are drawn."""
    generator = torch.Generator().manual_seed(seed)
    seconds = 0.0
    for _ in range(pieces):
        attempt = interval + checkpoint_seconds
        while (failure := _drawn(failure_seconds, generator)) < attempt:
            seconds += failure
            attempt = restart_seconds + interval + checkpoint_seconds
        seconds += attempt
    return seconds / (pieces * interval) - 1


def _drawn(mean: float, generator: torch.Generator) -> float:
    return float(torch.empty(()).exponential_(1 / mean, generator=generator))
