"""Unit 05, GPipe: its order, and how much of its time is a bubble."""

from collections.abc import Sequence
from typing import Any

from course_lib.training.pipeline.actions import Forward
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_05 import drivers
from graders.units.unit_05.schedules import (
    Listed,
    all_run,
    all_that_run,
    drawn_seconds,
    few,
    listed,
    many,
    no_longer_than_gpipe,
    running,
)

EVERY_ONE = "Each micro-batch from 0 to micro_batches - 1 has one Forward and, after it, one Backward."
ANY_NUMBERS = "There may be fewer micro-batches than stages, one stage, or one micro-batch."


@exercise(
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion("every micro-batch, once", 3, EVERY_ONE),
        Criterion("any numbers", 2, ANY_NUMBERS),
        Criterion("forwards first", 1, "No Backward comes before the last Forward."),
        Criterion(
            "no longer than it must be",
            2,
            "If a stage does its backwards in another order than the stage behind it, it waits for those "
            "that come late.",
            needs=("every micro-batch, once", "forwards first"),
        ),
    ),
    hints=(
        "What does stage 0 do while the others are still busy with the first micro-batch, and does the "
        "stage's "
        "number change anything about the order?",
        "Huang et al. let backward begin with the last micro-batch: its activations are the newest.",
    ),
)
def gpipe(answer: Answer, rng: Rng) -> Findings:
    """Schedules of drawn numbers of stages and micro-batches."""
    usual, odd = listed(answer, many(rng)), listed(answer, few(rng))
    yield "every micro-batch, once", all_run(usual)
    yield "any numbers", all_run(odd)
    both = running(odd, usual)
    yield "forwards first", all_that_run(both, _forwards_first)
    seconds = drawn_seconds(rng)
    yield (
        "no longer than it must be",
        all_that_run(both, lambda each: no_longer_than_gpipe(each, seconds)),
    )


def _forwards_first(each: Listed) -> Finding:
    for stage, actions in enumerate(each.schedule):
        if not all(isinstance(action, Forward) for action in actions[: each.case.micro_batches]):
            text = f"{each.case} stage {stage} does {actions[: each.case.micro_batches]} first"
            return Finding(False, f"{text}; expected {each.case.micro_batches} Forwards.")
    return Finding(True, "All Forwards come first.")


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "equal stages",
            3,
            "Between the first forward and the last backward each stage is busy m times. How long is it "
            "in all?",
        ),
        Criterion(
            "stages that differ",
            4,
            "Follow the first micro-batch through all stages. By how much is each later one behind it at "
            "the end? "
            "The slowest forward and the slowest backward need not be on one stage.",
        ),
        Criterion(
            "messages",
            2,
            "How many cuts does a micro-batch cross, there and back? Others are on their way meanwhile.",
            needs=("equal stages", "stages that differ"),
        ),
        Criterion("one stage", 1, "It waits for nobody.", needs=("equal stages", "messages")),
    ),
    hints=(
        "When has the first micro-batch passed through the last stage, and how much later the second one, "
        "if one "
        "stage is slower than all others?",
        "Backward is another pipeline, with the stages in the opposite order; it begins where forward ends.",
        "The share is 1 minus what all stages compute, divided by the stages and by the time that all of "
        "it takes.",
    ),
)
def bubble_fraction(answer: Answer, rng: Rng) -> Findings:
    """Drawn stages and messages, against what the order takes, from first begin to last end."""
    even = [_even(rng, rng.integer(2, 6)) for _ in range(3)]
    yield "equal stages", _fractions(answer, even)
    uneven = _fractions(answer, [_uneven(rng, rng.integer(3, 6)) for _ in range(4)])
    yield "stages that differ", uneven
    drawn = (_uneven, _uneven, _even, _even) if uneven.passed else (_even, _even)
    slow = [(*draw(rng, rng.integer(2, 5)), rng.integer(1, 9) / 4) for draw in drawn]
    yield "messages", _fractions(answer, slow)
    yield "one stage", _fractions(answer, [(*_even(rng, 1), 1.5), _even(rng, 1)])


Stages = tuple[list[float], list[float], int]
"""Seconds of forward and of backward, stage by stage; micro-batches."""


def _even(rng: Rng, stages: int) -> Stages:
    forward, backward = rng.integer(2, 9) / 8, rng.integer(2, 20) / 8
    return [forward] * stages, [backward] * stages, rng.integer(1, 9)


def _uneven(rng: Rng, stages: int) -> Stages:
    """Stages of which one is slowest in forward, and another one in backward."""
    forward = [rng.integer(2, 9) / 8 for _ in range(stages)]
    backward = [rng.integer(2, 20) / 8 for _ in range(stages)]
    first = rng.integer(0, stages - 1)
    forward[first], backward[(first + 1) % stages] = 1.5, 3.0
    return forward, backward, rng.integer(2, 9)


def _fractions(answer: Answer, cases: Sequence[Stages | tuple[*Stages, float]]) -> Finding:
    given: list[Any] = [list(case) for case in cases]
    return compare.first_failure(
        finding
        for reply, arguments in compare.side_by_side(answer.call(drivers.fractions, given), given)
        for finding in (
            compare.equal(reply.arguments, arguments, "the arguments afterwards"),
            compare.near(reply.result, expected_bubble(*arguments), f"bubble_fraction{tuple(arguments)}"),
        )
    )


def expected_bubble(
    forward: list[float], backward: list[float], micro_batches: int, message: float = 0.0
) -> float:
    """Passing time on, action by action: a flow shop, forward, then backward."""
    ends = [0.0] * len(forward)
    for turn, seconds in ((1, forward), (-1, backward)):
        order = list(range(len(forward)))[::turn]
        start = ends[order[0]]
        arrived = [start] * micro_batches
        for place, stage in enumerate(order):
            # A stage's forwards have ended before its first gradient can arrive.
            for number in range(micro_batches):
                begin = max(ends[stage], arrived[number] + (message if place else 0.0))
                ends[stage] = arrived[number] = begin + seconds[stage]
    total = micro_batches * (sum(forward) + sum(backward))
    return 1 - total / (len(forward) * ends[0])
