"""Unit 00, why distribute at all: Amdahl's law."""

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call

MANY = 10**6
"""Workers; who keeps the time of each in a list, as the unit's example does, has room for them."""


@exercise(
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            "one worker",
            1,
            "One worker takes as long as before, whatever the fraction: a speedup of 1.",
            needs=("partly serial",),
        ),
        Criterion(
            "nothing serial",
            1,
            "If all of the work can be shared, w workers are w times as fast: old time / new time.",
            needs=("partly serial",),
        ),
        Criterion(
            "partly serial",
            1,
            "The serial part takes as long as ever; only the parallel part is divided by the workers. Add "
            "the times, then divide.",
        ),
    ),
    hints=(
        "If one worker takes 1 second, how long is the serial part of it, and how long the parallel part?",
        "With w workers the parallel part takes parallel_fraction / w. What is the time altogether?",
    ),
)
def amdahl_speedup(answer: Answer, rng: Rng) -> Findings:
    """The two ends first, then what lies between them."""
    fraction = _draw_fraction(rng)
    yield "one worker", _speedups(answer, [(fraction, 1), (0.0, 1), (1.0, 1)])
    yield "nothing serial", _speedups(answer, [(1.0, rng.integer(2, 100)), (1.0, rng.integer(101, 5000))])
    cases = [(_draw_fraction(rng), rng.integer(*some)) for some in ((2, 30), (31, 300), (301, 5000))]
    limits = [(0.0, rng.integer(2, 100)), (_draw_fraction(rng), MANY)]
    # Next to nothing is parallel, or serial: a speedup near 1, and one far from both limits.
    ends = [(rng.integer(1000, 9000) / 1_000_000, 2), (rng.integer(999_100, 999_990) / 1_000_000, MANY)]
    yield "partly serial", _speedups(answer, [*limits, *cases, *ends])


def _draw_fraction(rng: Rng) -> float:
    return rng.integer(50_000, 990_000) / 1_000_000


def _speedups(answer: Answer, cases: list[tuple[float, int]]) -> Finding:
    """Passes if the answer agrees with Amdahl (1967) in every case."""
    return compare.first_failure(
        compare.near(
            answer.call(call, fraction, workers),
            1 / ((1 - fraction) + fraction / workers),
            f"the speedup of {compare.counted(workers, 'worker')} with a parallel fraction of {fraction}",
        )
        for fraction, workers in cases
    )
