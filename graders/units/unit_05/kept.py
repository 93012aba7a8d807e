"""Unit 05, what waits in memory: counting it, and recomputing it."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from course_lib.training.pipeline.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Recompute,
)
from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.unit_05 import drivers
from graders.units.unit_05.schedules import action_of, peak, plain_of

Where = tuple[int, int]


@exercise(
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "whole backwards",
            2,
            "Go through the actions and count up and down; the answer is the largest count on the way.",
        ),
        Criterion(
            "backward in halves", 1, "Both halves need what forward has kept: only BackwardWeight frees it."
        ),
        Criterion("chunks", 1, "Forward(2) and Forward(2, chunk=1) keep activations of their own."),
        Criterion(
            "recomputed",
            2,
            "A Forward that is recomputed later keeps nothing that counts; its Recompute does.",
            needs=("whole backwards", "backward in halves"),
        ),
    ),
    hints=(
        "Which actions make the number that waits larger, which smaller, and which leave it as it is?",
        "Whether a Forward keeps anything you know only when you have seen all actions.",
    ),
)
def peak_activations(answer: Answer, rng: Rng) -> Findings:
    """Drawn orders of actions, of each kind by itself, then mixed."""
    yield "whole backwards", _peaks(answer, [*(_drawn(rng, 1, 0.0, 0.0) for _ in range(5)), []])
    halves = _peaks(answer, [_drawn(rng, 1, 0.7, 0.0) for _ in range(5)])
    yield "backward in halves", halves
    chunks = _peaks(answer, [_drawn(rng, 3, 0.0, 0.0) for _ in range(4)])
    yield "chunks", chunks
    again = [_drawn(rng, 1, 0.0, 0.6) for _ in range(4)]
    if halves.passed and chunks.passed:
        again += [_drawn(rng, 2, 0.3, 0.6) for _ in range(6)]
    yield "recomputed", _peaks(answer, again)


def _drawn(rng: Rng, chunks: int, halves: float, recomputed: float) -> list[Action]:
    """A stage's actions in a drawn order that could come about. halves, recomputed: how often."""
    places = [(number, chunk) for number in range(rng.integer(3, 6)) for chunk in range(chunks)]
    left: list[list[Action]] = []
    for where in places:
        again: list[Action] = [Recompute(*where)] if rng.integer(1, 100) <= 100 * recomputed else []
        split = rng.integer(1, 100) <= 100 * halves
        back: list[Action] = [BackwardInput(*where), BackwardWeight(*where)] if split else [Backward(*where)]
        left.append([Forward(*where), *again, *back])
    actions = []
    while left:
        chosen = rng.choice(left)
        actions.append(chosen.pop(0))
        if rng.integer(0, 3) == 0 and chosen:
            actions.append(chosen.pop(0))
        left = [each for each in left if each]
    return actions


def _peaks(answer: Answer, cases: Sequence[Sequence[Action]]) -> Finding:
    given = [plain_of(case) for case in cases]
    replies = answer.call(drivers.peaks, given)
    return _first_or_short(
        compare.first_failure(
            (
                compare.equal(reply.left, plain, "the actions afterwards"),
                compare.equal(reply.result, peak(case), f"peak_activations({list(case)})"),
            )
        )
        for reply, (case, plain) in compare.side_by_side(replies, list(zip(cases, given, strict=True)))
    )


def _first_or_short(findings: Iterable[Finding]) -> Finding:
    """The first that did not pass, or of those that did one that is not long: lists of actions are."""
    found = sorted(findings, key=lambda each: len(each.seen))
    return compare.first_failure([*found, *found[1:2]])


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "before its backward",
            3,
            "All actions as they were, and one Recompute between a Forward and its Backward if anything "
            "else is.",
        ),
        Criterion(
            "in halves, in chunks",
            2,
            "BackwardInput needs the activations already. A chunk's Recompute is of that chunk.",
        ),
        Criterion(
            "as late as it can be",
            2,
            "The Recompute of another micro-batch must not come before this one's backward is done.",
        ),
        Criterion(
            "where it saves something",
            1,
            "A Forward whose backward comes directly after it need keep nothing for long.",
            needs=("before its backward", "in halves, in chunks"),
        ),
    ),
    hints=(
        "When is the latest moment for a Recompute, in terms of the action that needs it?",
        "Whether there is anything between a forward and its backward you can see from the action before.",
    ),
)
def with_recomputation(answer: Answer, rng: Rng) -> Findings:
    """Drawn orders of actions; the schedules of the unit are among them."""
    whole = [_drawn(rng, 1, 0.0, 0.0) for _ in range(5)]
    yield "before its backward", _all_recomputed(answer, whole, _repeats_all)
    mixed = [*_OTHER_CHUNKS, *(_drawn(rng, 2, 0.6, 0.0) for _ in range(5))]
    in_halves = _all_recomputed(answer, mixed, _repeats_all)
    yield "in halves, in chunks", in_halves
    both = [*whole, *mixed] if in_halves.passed else whole
    yield "as late as it can be", _all_recomputed(answer, both, _late)
    direct: list[list[Action]] = [
        [action for n in range(3) for action in (Forward(n), Backward(n))],
        [Forward(0), BackwardInput(0), BackwardWeight(0)],
    ]
    yield "where it saves something", _all_recomputed(answer, [*direct, *both], _nothing_in_vain)


_OTHER_CHUNKS: list[list[Action]] = [
    [Forward(0), Forward(0, 1), Backward(0), Backward(0, 1)],
    [Forward(1, 1), Forward(1), BackwardInput(1, 1), BackwardWeight(1, 1), Backward(1)],
]
"""A backward directly after a forward of the same micro-batch, in another chunk."""


def _all_recomputed(
    answer: Answer,
    cases: Sequence[Sequence[Action]],
    check: Callable[[Sequence[Action], Sequence[Action]], str],
) -> Finding:
    """check(case, result): what is wrong with the actions that came out, or nothing."""
    given = [plain_of(case) for case in cases]
    replies = answer.call(drivers.recomputed, given)
    return _first_or_short(
        _recomputed(reply, case, plain, check)
        for reply, (case, plain) in compare.side_by_side(replies, list(zip(cases, given, strict=True)))
    )


def _recomputed(
    reply: drivers.RecomputedReply,
    case: Sequence[Action],
    plain: list[PlainData],
    check: Callable[[Sequence[Action], Sequence[Action]], str],
) -> Finding:
    what = f"with_recomputation({list(case)})"
    if reply.left != plain or not reply.new:
        return Finding(False, f"{what} must return a new list, and leave its argument as it is.")
    read = [action_of(each) for each in reply.result]
    result = [action for action in read if action is not None]
    if len(result) < len(read):
        return Finding(False, f"{what} lists {compare.shown(reply.result)}; expected actions only.")
    wrong = _repeats_all(case, result) or check(case, result)
    return Finding(not wrong, f"{what} is {result}: {wrong or 'as expected'}.")


def _repeats_all(case: Sequence[Action], result: Sequence[Action]) -> str:
    """Whether the rest stays as it is, and each forward that waits is done again before it is needed."""
    if [action for action in result if not isinstance(action, Recompute)] != list(case):
        return "without Recompute it should be what was given"
    counts = Counter(action for action in result if isinstance(action, Recompute))
    for place, action in enumerate(case):
        if isinstance(action, Backward | BackwardInput):
            where = (action.micro_batch, action.chunk)
            again, direct = Recompute(*where), case[place - 1] == Forward(*where)
            if not (1 - direct <= counts.pop(again, 0) <= 1):
                return f"expected {again} once"
            if again in result and not result.index(Forward(*where)) < result.index(again) < result.index(
                action
            ):
                return f"expected {again} between {Forward(*where)} and {action}"
    return f"nobody needs {next(iter(counts))}" if counts else ""


def _late(case: Sequence[Action], result: Sequence[Action]) -> str:
    """Whether no more is kept at once than must be."""
    least, most = peak(_as_late_as_possible(case)), peak(result)
    return "" if most <= least else f"{most} micro-batches' activations are kept at once, and {least} must be"


def _as_late_as_possible(case: Sequence[Action]) -> list[Action]:
    """Each forward that waits is done again directly before its backward."""
    actions: list[Action] = []
    for action in case:
        where = (action.micro_batch, action.chunk)
        if isinstance(action, Backward | BackwardInput) and actions[-1] != Forward(*where):
            actions.append(Recompute(*where))
        actions.append(action)
    return actions


def _nothing_in_vain(case: Sequence[Action], result: Sequence[Action]) -> str:
    """Whether nothing is done again that has just been done."""
    for before, action in pairwise(case):
        again = Recompute(action.micro_batch, action.chunk)
        direct = before == Forward(action.micro_batch, action.chunk)
        if direct and isinstance(action, Backward | BackwardInput) and again in result:
            return f"{again} saves nothing, since {action} comes directly after {before}"
    return ""
