"""The grader of `one_f_one_b`."""

from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.units.unit_05.schedules import (
    AS_LITTLE_MEMORY,
    Step,
    any_numbers,
    as_fast_as_gpipe,
    every_one,
    keeps_at_most,
    schedule_of_steps,
)


def one_for_each_stage_behind(tried: Tried[Step]) -> Finding:
    """Passes if stage s of p keeps at most p - s micro-batches."""
    step = tried.case.features
    allowed = [min(step.micro_batches, step.stages - stage) for stage in range(step.stages)]
    return keeps_at_most(tried.seen.schedule, allowed)


@schedule_of_steps(
    minutes=25,
    difficulty=3,
    rubric=(
        every_one(2),
        any_numbers(2, "No warm-up has more forwards than there are micro-batches."),
        Criterion(
            "memory",
            3,
            "How many forwards come before the first backward on the last stage, how many on the first?",
            how=one_for_each_stage_behind,
        ),
        Criterion(
            "step time",
            5,
            "A stage that warms up with too few forwards, or turns round too late, makes others wait.",
            needs=AS_LITTLE_MEMORY,
            how=as_fast_as_gpipe,
        ),
    ),
    hints=(
        "Which stage can begin with a backward first, and after how many forwards?",
        "How many more forwards can the stage before it do until the first gradient comes back to it?",
        "Warm up with min(m, p - s - 1) forwards, then forward and backward in turns, then what is left.",
    ),
)
def one_f_one_b() -> None:
    """Narayanan et al. (2021), section 2.2."""
