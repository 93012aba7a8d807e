"""The grader of `gpipe`."""

from course_lib.training.pipeline.actions import Forward
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.units.unit_05.schedules import Step, any_numbers, as_fast_as_gpipe, every_one, schedule_of_steps


def forwards_first(tried: Tried[Step]) -> Finding:
    """Passes if no stage has a backward before its last forward."""
    number = tried.case.features.micro_batches
    for stage, actions in enumerate(tried.seen.schedule):
        if not all(isinstance(action, Forward) for action in actions[:number]):
            text = f"stage {stage} does {actions[:number]} first; expected {number} Forwards."
            return Finding(False, text)
    return Finding(True, "all Forwards come first.")


@schedule_of_steps(
    minutes=10,
    difficulty=1,
    rubric=(
        every_one(3),
        any_numbers(2),
        Criterion("forwards first", 1, "No Backward comes before the last Forward.", how=forwards_first),
        Criterion(
            "no longer than it must be",
            2,
            "If a stage does its backwards in another order than the stage behind it, it waits for those "
            "that come late.",
            needs=("every micro-batch, once", "forwards first"),
            how=as_fast_as_gpipe,
        ),
    ),
    hints=(
        "What does stage 0 do while the others are still busy with the first micro-batch, and does the "
        "stage's number change anything about the order?",
        "Huang et al. let backward begin with the last micro-batch: its activations are the newest.",
    ),
)
def gpipe() -> None:
    """Huang et al. (2019)."""
