"""Unit 08, one server: what its network card has to carry."""

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call


@exercise(
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            "one server",
            1,
            "How many gradients come in during one second from one worker, and from all? What goes out for "
            "each?",
        ),
        Criterion("several servers", 1, "Each server has its part of the weights, and of every gradient."),
    ),
    hints=(
        "A worker that needs a third of a second for a gradient sends how many in a second?",
        "For each gradient that comes in, weights of the same size go out to one worker.",
    ),
)
def server_bandwidth(answer: Answer, rng: Rng) -> Findings:
    """The lecture's numbers and drawn ones, with one server and with several."""
    few = rng.integer(9, 99) / 8, 7.0, rng.integer(1, 3)
    yield "one server", _rates(answer, [(*few, 1), *(_drawn(rng, 1) for _ in range(3))])
    several = [_drawn(rng, rng.integer(2, 40)) for _ in range(3)]
    yield "several servers", _rates(answer, [(*few, 3), *several])


Case = tuple[float, float, int, int]


def _drawn(rng: Rng, servers: int) -> Case:
    """Bytes, seconds (more than one, and less), workers, servers."""
    return rng.integer(10**6, 10**9), rng.integer(20, 3000) / 1000, rng.integer(1, 500), servers


def _rates(answer: Answer, cases: list[Case]) -> Finding:
    """Passes if the answer gives both rates in every case."""
    return compare.first_failure(_both(answer, *case) for case in cases)


def _both(answer: Answer, nbytes: float, seconds: float, workers: int, servers: int) -> Finding:
    """One server is what the answer is to take if it is told of none."""
    seen = answer.call(call, nbytes, seconds, workers, *([servers] if servers > 1 else []))
    where = f"{nbytes:,} bytes every {seconds:g} s from {compare.counted(workers, 'worker')}"
    where += f" to {compare.counted(servers, 'server')}"
    if type(seen) is not tuple or len(seen) != 2:
        return Finding(False, f"{where}: {compare.shown(seen)}; expected a tuple of two numbers.")
    wanted = workers * nbytes / seconds / servers
    ways = zip(("into", "out of"), seen, strict=True)
    return compare.first_failure(
        compare.near(rate, wanted, f"{where}: what flows {way} a server", unit=" bytes/s")
        for way, rate in ways
    )
