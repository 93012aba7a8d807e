"""Grading by cases: which cases there are, and which row a failure is explained by, on made-up answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from graders.grading.answer import AnswerFailed, FailureKind
from graders.grading.cases import both, vary
from graders.grading.exercise import Criterion, Exercise, Finding, Verdict
from graders.grading.judging import ByCases, Stage, feature, in_words
from graders.grading.rng import Rng
from graders.grading.run import grade


@dataclass(frozen=True)
class Cup:
    """Features of something to drink."""

    ounces: int = feature(4, "{} ounces")
    drink: str = feature("tea", "{}")
    milk: bool = feature(False, lambda milk: "milk" if milk else "")
    guests: int = 1


Fails = Callable[[Cup], bool]
WARM, SIZE, DRINK, MILK, QUICK = "warm", "any size", "any drink", "with milk", "quick"


def rubric(how: Callable[[Any], Finding | None] | None = None) -> tuple[Criterion, ...]:
    rows = (
        Criterion(WARM, 2, "Warm it."),
        Criterion(SIZE, 1, "Measure.", vary=vary(ounces=(0, 1, 8))),
        Criterion(DRINK, 1, "Ask.", vary=vary(drink=("coffee", "cocoa")) + both(drink="water", ounces=16)),
        Criterion(MILK, 1, "Pour.", vary=vary(milk=(True,))),
    )
    return (*rows, Criterion(QUICK, 1, "Run.", how=how)) if how else rows


class Bar(Stage[Cup]):
    """A stage on which `fails` says what is wrong, of a cup and of those that were poured before it."""

    def __init__(self, fails: Callable[..., bool], ends: bool = True) -> None:
        self.fails, self.ends = fails, ends
        self.runs: list[list[Cup]] = []

    def together(self, cup: Cup) -> int:
        return cup.guests

    def run(self, answer: Any, cases: Sequence[tuple[Cup, Rng]]) -> list[tuple[Finding, Any]]:
        cups = [cup for cup, _ in cases]
        self.runs.append(cups)
        found = []
        for number, cup in enumerate(cups):
            wrong = self.fails(cup, cups[:number])
            if wrong and not self.ends:
                raise AnswerFailed(FailureKind.DEADLOCK, "all wait")
            found.append((Finding(not wrong, "cold" if wrong else "warm"), cup))
        return found

    def typed(self, cup: Cup) -> str:
        return f"pour({cup.ounces}, {cup.drink!r})"


def verdicts(
    fails: Callable[..., bool], *, ends: bool = True, how: Callable[[Any], Finding | None] | None = None
) -> dict[str, Verdict]:
    stage = Bar(fails, ends)
    rows = rubric(how)
    judge = ByCases(Cup(), stage, rows, possible=lambda cup: not (cup.milk and cup.drink == "water"))
    result = grade(Exercise("bar", "pour", rows, judge, 5, 1), None, Rng(1))  # type: ignore[arg-type]
    assert not result.mistake, result.mistake
    return {each.criterion.name: each.verdict for each in result.criteria}


def failed(fails: Callable[..., bool], **options: Any) -> list[str]:
    return [name for name, verdict in verdicts(fails, **options).items() if verdict is Verdict.FAILED]


def test_every_change_meets_every_other_row_in_few_cases() -> None:
    judge = ByCases(Cup(), Bar(lambda *_: False), rubric(), possible=lambda cup: cup.drink != "cocoa")
    cases = judge.space.cases
    assert cases[0].features == Cup()
    assert [case.number for case in cases] == list(range(len(cases)))
    alone = [case.changes[0] for case in cases if len(case.changes) == 1]
    assert alone == [each for each in judge.space.changes if each.values.get("drink") != "cocoa"]
    for change in alone:
        met = {row for case in cases if change in case.changes for row in case.rows}
        # Water comes in a size of its own.
        assert met == {SIZE, DRINK, MILK} - ({SIZE} if "water" in change.values.values() else set())
    assert len(cases) <= 1 + len(alone) + 4


RIGHT = dict.fromkeys((WARM, SIZE, DRINK, MILK), Verdict.PASSED)


def test_a_right_answer_passes_all_rows_in_few_runs() -> None:
    assert verdicts(lambda *_: False) == RIGHT


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(
    ("fails", "row"),
    [
        (lambda cup, before: True, WARM),
        (lambda cup, before: cup.ounces == 0, SIZE),
        (lambda cup, before: cup.drink == "cocoa", DRINK),
        (lambda cup, before: cup.milk, MILK),
        # Of two features, neither of which fails alone, the later row.
        (lambda cup, before: cup.milk and cup.drink == "coffee", MILK),
        (lambda cup, before: cup.ounces == 8 and cup.drink == "coffee", DRINK),
        # Only after another.
        (lambda cup, before: cup.milk and any(each.ounces == 8 for each in before), MILK),
        (lambda cup, before: cup.ounces == 8 and len(before) > 0, SIZE),
    ],
)
def test_one_cause_fails_one_row(fails: Fails, row: str, ends: bool) -> None:
    assert failed(fails, ends=ends) == [row]


def test_two_causes_fail_two_rows() -> None:
    assert failed(lambda cup, before: cup.ounces == 1 or cup.milk) == [SIZE, MILK]


def test_how_is_asked_of_cases_that_are_right() -> None:
    asked: list[Cup] = []

    def how(tried: Any) -> Finding | None:
        asked.append(tried.seen)
        return None if tried.seen.drink == "tea" else Finding(tried.seen.ounces != 16, "slow")

    assert failed(lambda cup, before: cup.milk, how=how) == [MILK, QUICK]
    assert Cup() in asked
    assert not any(cup.milk for cup in asked)


@pytest.mark.parametrize("ends", [True, False])
def test_a_row_may_ask_what_no_case_can_say(ends: bool) -> None:
    def ask(answer: Any, rng: Rng) -> Finding:
        if not ends:
            raise AnswerFailed(FailureKind.DEADLOCK, "all wait")
        return Finding(False, "nobody came")

    rows = (*rubric(), Criterion("guests", 1, "Invite.", ask=ask))
    judge = ByCases(Cup(), Bar(lambda *_: False), rows)
    result = grade(Exercise("bar", "pour", rows, judge, 5, 1), None, Rng(1))  # type: ignore[arg-type]
    assert result.criteria[-1].verdict is Verdict.FAILED
    assert result.criteria[-1].seen == ("nobody came" if ends else "all wait")


def test_a_failure_names_its_case_what_came_before_and_how_to_type_it() -> None:
    stage = Bar(lambda cup, before: cup.milk and any(each.ounces == 8 for each in before))
    rows = rubric()
    judge = ByCases(Cup(), stage, rows)
    result = grade(Exercise("bar", "pour", rows, judge, 5, 1), None, Rng(1))  # type: ignore[arg-type]
    seen = {each.criterion.name: each.seen for each in result.criteria}
    assert seen[MILK] == (
        "With 4 ounces, tea, milk, after a call with 8 ounces, tea: cold\nTry it: pour(4, 'tea')"
    )
    assert seen[SIZE] == "Tried and right: 0 ounces; 1 ounce; 8 ounces."
    assert seen[DRINK] == "Tried and right: coffee; cocoa; 16 ounces, water."


def test_features_in_words() -> None:
    assert in_words(Cup(milk=True)) == "4 ounces, tea, milk"
    assert in_words(Cup(), ["drink", "guests"]) == "tea"
