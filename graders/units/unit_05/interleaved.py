"""The grader of `interleaved`."""

from graders.grading.cases import both, vary
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.units.unit_05.schedules import (
    AS_LITTLE_MEMORY,
    Listed,
    Step,
    ends_within,
    keeps_at_most,
    schedule_of_steps,
)


def memory(tried: Tried[Step]) -> Finding:
    """Passes if no stage keeps more than its warm-up and one more, counted in each chunk."""
    step = tried.case.features
    largest = -(-step.micro_batches // max(1, step.micro_batches // step.stages))
    warm_ups = [2 * (step.stages - stage - 1) + (step.pieces - 1) * largest for stage in range(step.stages)]
    allowed = [min(step.pieces * step.micro_batches, each + 1) for each in warm_ups]
    return keeps_at_most(tried.seen.schedule, allowed)


def bubble(tried: Tried[Step]) -> Finding:
    """Passes if filling and emptying takes as long as a chunk lets it."""
    listed: Listed = tried.seen
    p, m, pieces = listed.step.stages, listed.step.micro_batches, listed.step.pieces
    around = (p - 1) * sum(listed.seconds) / (pieces if m >= p else 1)
    return ends_within(listed, m * sum(listed.seconds) + around)


def messages(tried: Tried[Step]) -> Finding | None:
    """Passes if messages as long as a chunk's shorter action delay a step only at its begin and end."""
    listed: Listed = tried.seen
    p, m, pieces = listed.step.stages, listed.step.micro_batches, listed.step.pieces
    if m < p:
        return None
    message = min(listed.seconds) / pieces
    around = (p - 1) * sum(listed.seconds) / pieces + 2 * (p * pieces - 1) * message
    return ends_within(listed, m * sum(listed.seconds) + around * (p > 1), message)


@schedule_of_steps(
    minutes=45,
    difficulty=5,
    base=Step(micro_batches=8, chunks=2),
    rubric=(
        Criterion(
            "every micro-batch, once",
            2,
            "Each micro-batch has one Forward and one Backward in each chunk. Backward goes through the "
            "chunks from the last to the first.",
            vary=vary(stages=(2,), micro_batches=(4, 12), chunks=(3,)),
        ),
        Criterion(
            "any numbers",
            3,
            "There may be fewer micro-batches than stages, one stage, one micro-batch, or one chunk. If "
            "their number is no multiple of the stages, which group is too small? (ScheduleInterleaved1F1B "
            "wants groups of one size, and refuses 7 micro-batches on 2 stages; Megatron refuses one stage.)",
            vary=vary(stages=(1, 3, 5), micro_batches=(1, 3, 7), chunks=(1,))
            + both(stages=5, micro_batches=7, chunks=3),
        ),
        Criterion("memory", 2, "A longer warm-up than must be keeps more.", how=memory),
        Criterion(
            "bubble",
            4,
            "Count the forwards of all chunks in the warm-up, and two for each stage behind this one. Groups "
            "may have more micro-batches than there are stages.",
            needs=AS_LITTLE_MEMORY,
            how=bubble,
        ),
        Criterion(
            "messages",
            3,
            "If a stage waits for each message that comes back to it, its warm-up is too short: what "
            "could it do meanwhile?",
            needs=(*AS_LITTLE_MEMORY, "bubble"),
            how=messages,
        ),
    ),
    hints=(
        "When is the first micro-batch of a group back at stage 0, for its second chunk, and what has "
        "stage 0 done in the meantime?",
        "List all forwards of a stage in their order, and all backwards in theirs. What is left to decide?",
        "1F1B's warm-up has p - s - 1 forwards. Here it has two for each stage behind this one, and one "
        "for each micro-batch of a group in each chunk but the last.",
    ),
)
def interleaved() -> None:
    """Narayanan et al. (2021), section 2.3, for any number of micro-batches."""
