"""The grader of `bubble_fraction`."""

from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng, compare
from graders.units.functions.stage import Arguments, of_function


@dataclass(frozen=True, slots=True)
class Pipeline:
    """differ: whether stages differ in forward, in backward. message: seconds; None: not told."""

    stages: int = feature(4, lambda stages: compare.counted(stages, "stage"))
    micro_batches: int = feature(6, "{} micro-batches")
    differ: tuple[bool, bool] = feature((False, False), lambda differ: "stages that differ" * any(differ))
    message: float | None = feature(
        None, lambda seconds: "" if seconds is None else f"messages of {seconds} s"
    )


def seconds_by_stage(rng: Rng, case: Pipeline) -> Arguments:
    """Of stages that differ one is slowest in forward, and another one in backward."""
    first = rng.integer(0, case.stages - 1)
    seconds = []
    for differ, slowest, place in zip(case.differ, (1.5, 3.0), (first, first + 1), strict=True):
        drawn = [rng.integer(2, 9) / 8 for _ in range(case.stages)]
        seconds.append(drawn if differ else drawn[:1] * case.stages)
        if differ:
            drawn[place % case.stages] = slowest
    return [*seconds, case.micro_batches, *([] if case.message is None else [case.message])]


@of_function(
    base=Pipeline(),
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "equal stages",
            4,
            "Between the first forward and the last backward each stage is busy m times. How long is it "
            "in all? A single one waits for nobody.",
            vary=vary(stages=(1, 2, 5), micro_batches=(1, 9)),
        ),
        Criterion(
            "stages that differ",
            4,
            "Follow the first micro-batch through all stages. By how much is each later one behind it at "
            "the end? The slowest forward and the slowest backward need not be on one stage.",
            vary=vary(differ=((True, False), (False, True), (True, True))),
        ),
        Criterion(
            "messages",
            2,
            "How many cuts does a micro-batch cross, there and back? Others are on their way meanwhile.",
            vary=vary(message=(0.25,)) + both(stages=1, message=1.5),
        ),
    ),
    hints=(
        "When has the first micro-batch passed through the last stage, and how much later the second one, "
        "if one stage is slower than all others?",
        "Backward is another pipeline, with the stages in the opposite order; it begins where forward ends.",
        "The share is 1 minus what all stages compute, divided by the stages and by the time that all of "
        "it takes.",
    ),
    arguments=seconds_by_stage,
)
def bubble_fraction(case: Pipeline, given: Arguments) -> Expected:
    """The share of time in which stages wait."""
    forward, backward, micro_batches = given[:3]
    message = case.message or 0.0
    total = last_end(forward, micro_batches, message) + last_end(backward[::-1], micro_batches, message)
    busy = micro_batches * (sum(forward) + sum(backward))
    names = ("forward", "backward", "micro_batches", "message")
    return Expected(1 - busy / (case.stages * total), dict(zip(names, given, strict=False)), returned=None)


def last_end(seconds: list[float], micro_batches: int, message: float) -> float:
    """When the last micro-batch leaves the last stage, action by action: a flow shop."""
    ends = [0.0] * micro_batches
    for place, of_stage in enumerate(seconds):
        free = 0.0
        for number in range(micro_batches):
            free = max(free, ends[number] + message * (place > 0)) + of_stage
            ends[number] = free
    return ends[-1]
