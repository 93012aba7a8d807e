"""A small unit for the tests of the framework: an exercise that is called, and one that is launched."""

from collections.abc import Iterator
from contextlib import contextmanager

from course_lib.runtime.request import per_rank
from graders.grading import compare
from graders.grading.answer import Answer
from graders.grading.exercise import REGISTRY, Criterion, Exercise, Findings
from graders.grading.kinds import Kind
from graders.grading.rng import Rng
from graders.units.drivers import call

UNIT = "90_sample"


def grade_double(answer: Answer, rng: Rng) -> Findings:
    x = rng.normal(3)
    yield "doubles", compare.close(answer.call(call, x), 2 * x, "double(x)")
    whole = rng.integers(5, 9, 2)
    yield "whole numbers too", compare.close(answer.call(call, whole), 2 * whole, "double(x)")


def grade_total(answer: Answer, rng: Rng) -> Findings:
    parts = [rng.normal(4) for _ in range(3)]
    observed = answer.launch(call, per_rank(parts), ranks=3)
    expected = [parts[0] + parts[1] + parts[2]] * 3
    yield "adds up", compare.close_on_all_ranks(observed.results, expected, "the total")
    calls = len(observed.communication(0))
    yield "one call", compare.at_most(calls, 1, "Communication calls of rank 0", kind=Kind.TOO_MUCH)


DOUBLE = Exercise(
    UNIT,
    "double",
    (
        Criterion("doubles", 2, "What is x + x?"),
        Criterion("whole numbers too", 1, "Keep the dtype: 2 is an integer, 2.0 is not."),
    ),
    grade_double,
    minutes=5,
    difficulty=1,
    hints=("Multiply.", "Multiply by two."),
)
TOTAL = Exercise(
    UNIT,
    "total",
    (
        Criterion("adds up", 1, "Every rank needs the sum over all ranks."),
        Criterion("one call", 1, "dist.all_reduce does it at once."),
    ),
    grade_total,
    minutes=10,
    difficulty=2,
)


@contextmanager
def registered() -> Iterator[None]:
    """The unit is one of those that there are."""
    REGISTRY[UNIT] = {"double": DOUBLE, "total": TOTAL}
    try:
        yield
    finally:
        del REGISTRY[UNIT]


SOLVED = {
    "double": "def double(x):\n    return 2 * x",
    "total": "def total(x):\n    dist.all_reduce(x)\n    return x",
}
STUBS = {
    "double": 'def double(x):\n    """Twice x."""\n    # YOUR CODE HERE\n    raise NotImplementedError()',
    "total": 'def total(x):\n    """The total."""\n    # YOUR CODE HERE\n    raise NotImplementedError()',
}
