"""Unit 13, Alpa's upper level: which layers are a stage, and how many devices it gets."""

from collections.abc import Iterator

from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Rng,
    compare,
    exercise,
)
from graders.units.unit_13.drivers.stages import StagesReply
from graders.units.unit_13.stage_cases import Case
from graders.units.unit_13.stage_models import (
    crossings,
    drawn,
    faster_together,
    full,
    large,
    measured,
    merging,
    nearly_alike,
    telling,
    two_valleys,
)

SECONDS = 6.0
"""What the plan of a large model may take: twice what is asked for, since other programs may be running."""


@exercise(
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "one micro-batch", 2, "Only the sum counts. All devices are used, even where fewer are faster."
        ),
        Criterion("many micro-batches", 2, "Nearly only the slowest stage counts, and the sum still does."),
        Criterion(
            "between the two",
            3,
            "The best plan of the first layers need not be part of the best plan of all: it may be slow in "
            "a stage that does not matter beside a slower one that is still to come. Any stage's seconds may "
            "be the best bound, however near another's.",
            needs=("one micro-batch", "many micro-batches"),
        ),
        Criterion(
            "what does not fit",
            2,
            "Where every plan has a stage that does not fit, raise ValueError.",
            needs=("one micro-batch", "many micro-batches", "between the two"),
        ),
        Criterion(
            "each stage asked for once",
            1,
            "Keep what stage_seconds has said, and do not ask for more devices than there are.",
        ),
        Criterion(
            "a large model",
            2,
            "There are too many plans to try them all. How many different stages are there?",
            needs=("one micro-batch", "many micro-batches", "between the two"),
        ),
    ),
    hints=(
        "If you knew how slow the slowest stage may be, what would be left to be minimised, and could the "
        "layers be settled one after another?",
        "least[end, used]: the least sum for the first layers on so many devices, of stages within the "
        "bound. Which bounds are worth a try, and from which one on can none be better than what you have?",
    ),
)
def best_inter(answer: Answer, rng: Rng) -> Findings:
    """Small models with drawn tables, for which all plans are tried; then large ones."""
    small = [drawn(rng, *size) for size in ((3, 3), (4, 6), (5, 8), (1, 4), (6, 4))]
    small += [drawn(rng, 4, 7, (1, 3)), drawn(rng, 3, 8, (2, 3, 6)), drawn(rng, 3, 3, (1, 2, 4, 8))]
    many = [each.with_batches(rng.integer(300, 900)) for each in small]
    many.append(nearly_alike(rng.integer(1, 9), apart=0.02).with_batches(40))
    many.append(two_valleys(rng.integer(1, 9)).with_batches(40))
    between = [each.with_batches(number) for each in small for number in (2, 3, 5, 9)]
    made = [kind(rng.integer(1, 9)) for kind in (telling, nearly_alike, two_valleys, faster_together)]
    made += [*merging(rng), *(measured(rng, *size) for size in ((5, 6), (7, 7)))]
    between += [*made, *(each.in_units(1e-3) for each in between[:8] + made[:2])]
    between += [each.in_units(1e-7) for each in made]
    between += [each.in_units(1e-8) for each in crossings(rng)]
    asked: list[tuple[Case, StagesReply]] = []
    yield "one micro-batch", _as_good(answer, [each.with_batches(1) for each in small], asked)
    yield "many micro-batches", _as_good(answer, many, asked)
    yield "between the two", _as_good(answer, between, asked)
    yield "what does not fit", _as_good(answer, [*full(rng)], asked)
    yield "each stage asked for once", compare.first_failure(case.asks(reply) for case, reply in asked)
    yield "a large model", compare.first_failure(_in_time(answer, case) for case in large(rng))


def _as_good(answer: Answer, cases: list[Case], asked: list[tuple[Case, StagesReply]]) -> Finding:
    """Whether the answer's plans are as good as can be. What it is asked, and replies, is added to asked."""

    def findings() -> Iterator[Finding]:
        for case in cases:
            reply = case.asked(answer)
            asked.append((case, reply))
            yield case.as_good(reply)

    return compare.first_failure(findings())


def _in_time(answer: Answer, case: Case) -> Finding:
    try:
        return case.as_good(case.asked(answer, timeout=SECONDS))
    except AnswerFailed as error:
        if error.kind is FailureKind.TIMED_OUT:
            return Finding(False, f"{case} take more than {SECONDS:.0f} s.")
        raise
