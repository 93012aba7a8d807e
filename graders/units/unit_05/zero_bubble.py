"""The grader of `zero_bubble`."""

from collections.abc import Callable

from course_lib.training.pipeline.costs import Costs
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.units.unit_05.schedules import (
    AS_LITTLE_MEMORY,
    HALVES,
    Step,
    any_numbers,
    every_one,
    keeps_at_most,
    no_longer,
    schedule_of_steps,
)


def no_more_than_the_first(tried: Tried[Step]) -> Finding:
    """Passes if each stage keeps at most what 1F1B keeps on stage 0."""
    step = tried.case.features
    return keeps_at_most(tried.seen.schedule, [min(step.micro_batches, step.stages)] * step.stages)


def bubble(few: bool) -> Callable[[Tried[Step]], Finding | None]:
    """A row about the time of steps that have fewer micro-batches than stages, or of all others."""

    def check(tried: Tried[Step]) -> Finding | None:
        p, m = tried.case.features.stages, tried.case.features.micro_batches
        if (m < p) is not few:
            return None
        # The longer one of: a stage's own work and ZB-H1's bubble; the last micro-batch's way there and back,
        # and its weight half.
        units = max(3 * m + p - 1, 2 * (m + p - 1) + 1)
        told = "where a forward and each half of a backward take 1 second, "
        return no_longer(tried.seen.timing(Costs(forward=1.0, backward=2.0)), units, told)

    return check


@schedule_of_steps(
    minutes=40,
    difficulty=5,
    kinds=HALVES,
    rubric=(
        every_one(2, "Each micro-batch has one Forward, then one BackwardInput, then one BackwardWeight."),
        any_numbers(2),
        Criterion(
            "memory",
            2,
            "A micro-batch waits until its weight half is done. Before a new one comes in, an old one has "
            "to go.",
            how=no_more_than_the_first,
        ),
        Criterion(
            "bubble",
            6,
            "No stage may do a weight half while another waits for its input half. What does the last "
            "stage do at the end, when it has no forwards left?",
            needs=AS_LITTLE_MEMORY,
            how=bubble(few=False),
        ),
        Criterion(
            "few micro-batches",
            4,
            "With fewer micro-batches than stages the last gradient comes back late. Who must not be busy "
            "with a weight half then?",
            needs=("any numbers", *AS_LITTLE_MEMORY, "bubble"),
            how=bubble(few=True),
        ),
    ),
    hints=(
        "How many more micro-batches may stage s keep here than the p - s of 1F1B, and what could it put "
        "off for them?",
        "Stage 0 has no room to put anything off. By how many micro-batches can stage s put off its "
        "weight halves?",
    ),
)
def zero_bubble() -> None:
    """Qi et al. (2024), ZB-H1."""
