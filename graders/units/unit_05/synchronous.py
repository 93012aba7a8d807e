"""Unit 05, schedules after GPipe that step once a batch: 1F1B, interleaved stages, zero bubble."""

from course_lib.training.pipeline.costs import Costs
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_05.micro_batches import ANY_NUMBERS, EVERY_ONE
from graders.units.unit_05.schedules import (
    HALVES,
    Case,
    Listed,
    all_run,
    all_that_run,
    drawn_seconds,
    few,
    keeps_at_most,
    listed,
    many,
    no_longer,
    no_longer_than_gpipe,
    running,
)

AS_LITTLE_MEMORY = ("every micro-batch, once", "memory")
"""What is new counts only within their memory: GPipe, which keeps everything, is as fast as 1F1B."""


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("every micro-batch, once", 2, EVERY_ONE),
        Criterion(
            "any numbers", 2, f"{ANY_NUMBERS} No warm-up has more forwards than there are micro-batches."
        ),
        Criterion(
            "memory",
            3,
            "How many forwards come before the first backward on the last stage, how many on the first?",
        ),
        Criterion(
            "step time",
            5,
            "A stage that warms up with too few forwards, or turns round too late, makes others wait.",
            needs=AS_LITTLE_MEMORY,
        ),
    ),
    hints=(
        "Which stage can begin with a backward first, and after how many forwards?",
        "How many more forwards can the stage before it do until the first gradient comes back to it?",
        "Warm up with min(m, p - s - 1) forwards, then forward and backward in turns, then what is left.",
    ),
)
def one_f_one_b(answer: Answer, rng: Rng) -> Findings:
    """Schedules of drawn numbers of stages and micro-batches, for drawn costs."""
    usual, odd = listed(answer, many(rng)), listed(answer, few(rng))
    yield "every micro-batch, once", all_run(usual)
    yield "any numbers", all_run(odd)
    both = running(odd, usual)
    yield "memory", all_that_run(both, lambda each: keeps_at_most(each, _one_each(each.case)))
    seconds = drawn_seconds(rng)
    yield "step time", all_that_run(both, lambda each: no_longer_than_gpipe(each, seconds))


@exercise(
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(
            "every micro-batch, once",
            2,
            "Each micro-batch has one Forward and one Backward in each chunk. Backward goes through the "
            "chunks from the last to the first.",
        ),
        Criterion(
            "any numbers",
            2,
            f"{ANY_NUMBERS} If their number is no multiple of the stages, which group is too small?",
        ),
        Criterion("memory", 2, "A longer warm-up than must be keeps more."),
        Criterion(
            "bubble",
            3,
            "Count the forwards of all chunks in the warm-up, and two for each stage behind this one.",
            needs=AS_LITTLE_MEMORY,
        ),
        Criterion(
            "messages",
            3,
            "If a stage waits for each message that comes back to it, its warm-up is too short: what "
            "could it do meanwhile?",
            needs=(*AS_LITTLE_MEMORY, "bubble"),
        ),
        Criterion(
            "no multiple of the stages",
            2,
            "Groups may have more micro-batches than there are stages.",
            needs=("any numbers", *AS_LITTLE_MEMORY, "bubble"),
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
def interleaved(answer: Answer, rng: Rng) -> Findings:
    """Schedules of drawn numbers of stages, chunks and micro-batches, for drawn costs."""
    stages, chunks = rng.integer(3, 4), rng.integer(2, 3)
    usual = listed(answer, [Case(2, 4, rng.integer(2, 4)), Case(3, 3, 2), Case(stages, 2 * stages, chunks)])
    several = [
        Case(2, 7, 2),
        Case(3, 7, 3),
        Case(4, 5, 3),
        Case(stages + 1, stages + 2 + rng.integer(0, 1), 3),
    ]
    odd = listed(
        answer, [Case(case.stages, case.micro_batches, rng.integer(1, 3)) for case in few(rng)] + several
    )
    yield "every micro-batch, once", all_run(usual)
    yield "any numbers", all_run(odd)
    seconds = drawn_seconds(rng)
    yield "memory", all_that_run(usual, lambda each: keeps_at_most(each, _of_groups(each.case)))
    yield "bubble", all_that_run(usual, lambda each: _small_bubble(each, seconds))
    messages = all_that_run(usual, lambda each: _hidden_messages(each, seconds))
    yield "messages", messages
    yield (
        "no multiple of the stages",
        all_that_run(odd, lambda each: _like_multiples(each, seconds, messages.passed)),
    )


@exercise(
    minutes=40,
    difficulty=5,
    rubric=(
        Criterion(
            "every micro-batch, once",
            2,
            "Each micro-batch has one Forward, then one BackwardInput, then one BackwardWeight.",
        ),
        Criterion("any numbers", 2, ANY_NUMBERS),
        Criterion(
            "memory",
            2,
            "A micro-batch waits until its weight half is done. Before a new one comes in, an old one has "
            "to go.",
        ),
        Criterion(
            "bubble",
            6,
            "No stage may do a weight half while another waits for its input half. What does the last "
            "stage do at the end, when it has no forwards left?",
            needs=AS_LITTLE_MEMORY,
        ),
        Criterion(
            "few micro-batches",
            4,
            "With fewer micro-batches than stages, or hardly more, the last gradient comes back late. Who "
            "must not be busy with a weight half then?",
            needs=("any numbers", *AS_LITTLE_MEMORY, "bubble"),
        ),
    ),
    hints=(
        "How many more micro-batches may stage s keep here than the p - s of 1F1B, and what could it put "
        "off for them?",
        "Stage 0 has no room to put anything off. By how many micro-batches can stage s put off its "
        "weight halves?",
    ),
)
def zero_bubble(answer: Answer, rng: Rng) -> Findings:
    """Schedules of drawn numbers of stages and micro-batches, for equal forwards and halves."""
    usual, odd = listed(answer, many(rng), HALVES), listed(answer, few(rng), HALVES)
    yield "every micro-batch, once", all_run(usual)
    yield "any numbers", all_run(odd)
    both = running(odd, usual)
    yield "memory", all_that_run(both, lambda each: keeps_at_most(each, _no_more_than_the_first(each.case)))
    unit = rng.integer(2, 9) / 8
    costs = Costs(forward=unit, backward=2 * unit)
    for name, cases in (("bubble", usual), ("few micro-batches", odd)):
        yield (
            name,
            all_that_run(cases, lambda each: no_longer(each, costs, unit * _zero_bubble_units(each.case))),
        )


def _one_each(case: Case) -> list[int]:
    return [min(case.micro_batches, case.stages - stage) for stage in range(case.stages)]


def _no_more_than_the_first(case: Case) -> list[int]:
    return [min(case.micro_batches, case.stages)] * case.stages


def _zero_bubble_units(case: Case) -> int:
    """The longer one of: a stage's own work and ZB-H1's bubble; the last micro-batch's way there and back,
    and its weight half.
    """
    p, m = case.stages, case.micro_batches
    return max(3 * m + p - 1, 2 * (m + p - 1) + 1)


def _small_bubble(each: Listed, seconds: tuple[float, float]) -> Finding:
    """Passes if filling and emptying takes as long as a chunk lets it. seconds: of all chunks."""
    p, m, pieces = each.case.stages, each.case.micro_batches, each.case.pieces
    of_chunk = Costs(seconds[0] / pieces, seconds[1] / pieces)
    around = (p - 1) * sum(seconds) / (pieces if m >= p else 1)
    return no_longer(each, of_chunk, m * sum(seconds) + around)


def _hidden_messages(each: Listed, seconds: tuple[float, float]) -> Finding:
    """Passes if messages as long as a chunk's shorter action delay a step only at its begin and end."""
    p, m, pieces = each.case.stages, each.case.micro_batches, each.case.pieces
    message = min(seconds) / pieces
    costs = Costs(seconds[0] / pieces, seconds[1] / pieces, message=message)
    around = (p - 1) * sum(seconds) / pieces + 2 * (p * pieces - 1) * message
    return no_longer(each, costs, m * sum(seconds) + around * (p > 1))


def _like_multiples(each: Listed, seconds: tuple[float, float], hidden: bool) -> Finding:
    """Memory, bubble; messages where they are hidden with multiples: else they have cost points already."""
    findings = [keeps_at_most(each, _of_groups(each.case))]
    if hidden and each.case.micro_batches >= each.case.stages:
        findings.append(_hidden_messages(each, seconds))
    return compare.first_failure([*findings, _small_bubble(each, seconds)])


def _of_groups(case: Case) -> list[int]:
    """Micro-batches that wait at once, counted in each chunk: warm-up and one more, or all."""
    largest = -(-case.micro_batches // max(1, case.micro_batches // case.stages))
    warm_up = [2 * (case.stages - stage - 1) + (case.pieces - 1) * largest for stage in range(case.stages)]
    return [min(case.pieces * case.micro_batches, each + 1) for each in warm_up]
