"""The grader of `server_bandwidth`."""

from dataclasses import dataclass

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, of_function

NAMES = ("model_bytes", "seconds_per_gradient", "workers", "servers")


@dataclass(frozen=True, slots=True)
class Load:
    """servers: 1 is what the answer is to take if it is told of none."""

    servers: int = feature(1, lambda servers: f"{servers} server{'s' * (servers > 1)}")


def bytes_seconds_workers(rng: Rng, load: Load) -> Arguments:
    """What the answer is told."""
    servers = [load.servers] * (load.servers > 1)
    return [rng.integer(10**7, 10**9) / 8, rng.integer(20, 2000) / 1000, rng.integer(2, 500), *servers]


@of_function(
    base=Load(),
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion("one server", 1, "How many gradients come in during a second? What goes out for each?"),
        Criterion("several servers", 1, "Each has its part of a gradient.", vary=vary(servers=(2, 3, 40))),
    ),
    hints=(
        "A worker that needs a third of a second for a gradient sends how many in a second?",
        "For each gradient that comes in, weights of the same size go out to one worker.",
    ),
    arguments=bytes_seconds_workers,
)
def server_bandwidth(load: Load, given: Arguments) -> Expected:
    """A gradient in for each that is computed, and weights out, each way shared by the servers."""
    nbytes, seconds, workers = given[:3]
    rate = workers * nbytes / seconds / load.servers
    return Expected((rate, rate), dict(zip(NAMES, given, strict=False)), returned=None)
