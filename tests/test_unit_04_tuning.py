"""Unit 04: what the solution's search finds earns all points, whichever networks are drawn."""

import random

from graders.grading.registry import load_all
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer
from tests.answers import solved

UNIT, NAME = "04_horovod", "tune_fusion"
SEEDS = 30


def test_the_solutions_search_earns_all_points_for_any_seed(rng: random.Random) -> None:
    # Invariant: the best that the grader knows of never lies beyond the reach of the search that it asks for.
    answer = kernel_answer(solved(UNIT)[NAME], NAME)
    for seed in (rng.randrange(2**31) for _ in range(SEEDS)):
        result = grade(load_all()[UNIT][NAME], answer, Rng(seed))
        assert result.passed, f"with seed {seed}: {[row.seen for row in result.criteria]}"
