"""The student's page and the class page: what they say, that they need no network, that nothing escapes."""

import csv
import io
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from graders.classroom.entries import Entry
from graders.classroom.judge_process import nothing_earned
from graders.classroom.pages import class_csv, class_page, student_page, write_pages
from graders.classroom.result_store import Graded, ResultStore
from graders.classroom.standings import SEEN_SHOWN, standings
from graders.grading.answer import AnswerFailed, FailureKind
from graders.grading.exercise import Exercise, Verdict
from graders.grading.report import Report
from graders.grading.run import CriterionResult, ExerciseResult, answer_failed, not_attempted
from graders.host.grade_submission import grade_submission
from graders.protocol.codec import CodecError
from graders.protocol.records import deadlock_from_plain
from graders.submissions.cells import Cell
from graders.submissions.read import Submission
from tests import sample_unit
from tests.sample_unit import DOUBLE, TOTAL, UNIT

HOSTILE = '<script>alert("x")</script>'


@pytest.fixture(autouse=True)
def sample():
    with sample_unit.registered():
        yield


def judged(exercise: Exercise, *verdicts: Verdict, seen: str = "") -> ExerciseResult:
    pairs = zip(exercise.rubric, verdicts, strict=True)
    criteria = (CriterionResult(row, verdict, seen, hint=row.hint) for row, verdict in pairs)
    return ExerciseResult(exercise, tuple(criteria))


def graded(student: str, *results: ExerciseResult, seconds: float = 1.0) -> Graded:
    return Graded(student, "key", Report(UNIT, results), f"{UNIT}.ipynb", seconds=seconds)


P, F, B = Verdict.PASSED, Verdict.FAILED, Verdict.BLOCKED
CRASH = answer_failed(TOTAL, AnswerFailed(FailureKind.RAISED, f"KeyError: {HOSTILE}\n  in total, line 2"))


@pytest.fixture
def class_() -> list[Graded]:
    nothing = Graded("zed", "key", nothing_earned(UNIT, "It is empty."), reason="It is empty.")
    return [
        graded("ann", judged(DOUBLE, P, P), judged(TOTAL, P, P)),
        graded("ben", judged(DOUBLE, P, F, seen="float32; expected int64"), CRASH, seconds=40),
        graded("cia", judged(DOUBLE, P, F, seen="float32; expected int64"), CRASH),
        graded("dan", judged(DOUBLE, F, F, seen="none of it"), not_attempted(TOTAL, "still the stub")),
        nothing,
    ]


STUCK = """import torch.distributed as dist
def total(x):
    dist.recv(x, src=(dist.get_rank() + 1) % 3)"""


def test_a_deadlock_is_drawn_and_the_drawing_is_kept(tmp_path):
    # Invariant: the student sees who waited for whom, also after the verdicts were read from the disk.
    submission = Submission(f"{UNIT}.ipynb", (Cell("<cell>", STUCK),), main=True)
    stuck = Graded("eve", "key", grade_submission(submission, UNIT))
    html = student_page(stuck)
    assert html.count('<img alt="Ranks in a circle') == 1
    assert "The cycle of waits goes from rank 0 to 1 to 2 to 0." in html
    kept = ResultStore(tmp_path)
    kept.keep(stuck)
    assert student_page(kept.find("eve")) == html


WAIT = {"rank": 0, "op": "recv", "peers": (1,), "expects": "send", "detail": "recv()"}


@pytest.mark.parametrize(
    "change",
    [{"rank": -1}, {"rank": True}, {"peers": (10**9,)}, {"peers": [1]}, {"detail": "$x$"}, {"more": 1}],
)
def test_a_forged_deadlock_is_not_drawn(change):
    # Invariant: nothing reaches the figure but calls of ranks that there can be.
    plain = {"waiting": [{**WAIT, **change}], "cycle": (), "finished": ()}
    with pytest.raises(CodecError):
        deadlock_from_plain(plain)


def test_standings_count_everybody_once(class_):
    # Invariant: solved, partly, failed and untouched add up to the class.
    double, total = standings(class_)
    assert double.counts == {"solved": 1, "partly": 2, "failed": 1, "untouched": 1}
    assert total.counts == {"solved": 1, "partly": 0, "failed": 2, "untouched": 2}
    assert (total.blocked, sum(miss.not_judged for miss in total.misses)) == (0, 2)


def test_the_commonest_miss_comes_first_with_its_message(class_):
    double, total = standings(class_)
    assert double.misses[0].criterion.name == "whole numbers too"
    assert (double.misses[0].failed, double.misses[0].seen_count) == (3, 2)
    assert double.misses[0].seen == "float32; expected int64"
    # Without the place: that is another one for everybody.
    assert total.misses[0].seen == f"KeyError: {HOSTILE}"


SAME_MISTAKE = (
    "the sum is float32[2, 3] (0.25, -1.5e-07, ...); expected float32[2, 3] (1, 2, ...); not 0.25.",
    "the sum is float64[4] (7, ...); expected float64[4] (-2.5, 8.25, ...); not 7.",
)


def missed(*seen):
    """How a class stands at the first criterion of one exercise, where each has seen one of these."""
    first = DOUBLE.rubric[0]
    results = [ExerciseResult(DOUBLE, (CriterionResult(first, Verdict.FAILED, text),)) for text in seen]
    (standing,) = standings([graded("", result) for result in results])
    return standing.misses[0]


def test_messages_of_one_mistake_count_together():
    # Inputs are drawn for each submission, and so no two of these would be the same.
    found = missed("rank 1 failed", *SAME_MISTAKE, "The cell failed.\n  in f, line 3\nKeyError: 7")
    assert (found.failed, found.seen_count, found.seen) == (4, 2, SAME_MISTAKE[0])
    assert missed("The cell failed.\n  in f, line 3\nKeyError: 7").seen == "The cell failed. KeyError: 7"
    late = "It was still running after 10 s, here:\n  in f, line 2: while True: pass"
    assert missed(late).seen == "It was still running after 10 s."


LONG = "A message does not fit the receive that it meets, which is tag 0 of rank 1, and so nothing comes. "
MESSAGES = (
    LONG * 4,
    f"With 3 ranks: {LONG}\n\nrank 0:\n    at unit.py, line 7: dist.send(x, 1)\n\nWhat to do: look.",
    "All ranks returned, but 2 calls are open:\n  rank 0: send(float32[2]) to rank 1\nWhat to do: wait.",
    LONG.replace(".", ",") * 3,
    "x" * 10**4,
)


@pytest.mark.parametrize("message", MESSAGES, ids=["long", "paragraphs", "listed", "commas", "endless"])
def test_quotes_end_with_a_sentence(message):
    # Invariant: what is quoted is whole, or whole sentences with all of the message folded below.
    found = missed(message)
    assert len(found.seen) <= SEEN_SHOWN
    assert found.seen == "" or found.seen.endswith((".", ":"))
    assert found.whole == message
    page = class_page(UNIT, [graded("ann", *(judged(each, F, F, seen=message) for each in (DOUBLE, TOTAL)))])
    assert f"<summary>{found.seen or 'A long message'}</summary><pre>{message}</pre>" in page
    assert "..." not in page


def test_whole_messages_are_not_folded(class_):
    assert all(not miss.whole for each in standings(class_) for miss in each.misses if miss.seen_count > 1)


def entry(points: float, penalty: float = 0, late: timedelta = timedelta(), **scores: float) -> Entry:
    automatic = {"check_double": 3.0, "check_total": 2.0}
    return Entry(points, 5, automatic, {**automatic, **scores}, penalty, late)


def test_every_student_is_listed_with_what_was_changed_since(class_):
    # Invariant: a row each, with a link to the feedback, the gradebook's points and why they are not those of
    # the answers; the student's own page says the same.
    twice = ("double is defined in 2 cells.", "The code cell 3 failed.\n  in f, line 2")
    class_[0] = graded("=a b?<c>", judged(DOUBLE, P, P), judged(TOTAL, P, B))
    class_[1] = replace(class_[1], report=replace(class_[1].report, notes=twice))
    entries = {
        "=a b?<c>": entry(2, penalty=1, late=timedelta(days=2, hours=3), check_double=1),
        "ben": entry(2),
        "zed": entry(0),
    }
    page = class_page(UNIT, class_, entries)
    rows = re.split("<tr>", page[page.index("<h2>Students") : page.index("<h2>Slowest")])[2:]
    assert [re.search(r'href="feedback/([^"]*)\.html"', row)[1] for row in rows] == [
        *("%3Da%20b%3F%3Cc%3E", "ben", "cia", "dan", "zed"),
    ]
    assert ">2</td>" in rows[0]
    assert "2 d 3 h, 1 point taken off" in rows[0]
    assert "double 1 instead of 3 points" in rows[0]
    assert "double is defined in 2 cells." in rows[1]
    assert "<summary>The code cell 3 failed.</summary>" in rows[1]
    assert "Not in the gradebook" in rows[2]
    assert "Nothing could be graded. It is empty." in rows[4]
    assert "A verdict is blocked where" in page
    own = student_page(class_[0], entries["=a b?<c>"])
    assert "<h1>90_sample: 2 of 5 points</h1>" in own
    assert (
        "earn 4 of 5 points. Late by 2 d 3 h, 1 point taken off. By hand: double 1 instead of 3 points."
        in own
    )
    assert "<h2>To know</h2>" in student_page(class_[1])
    (row, *_) = csv.DictReader(io.StringIO(class_csv(class_, entries)))
    assert (row["points"], row["penalty"], row["late_seconds"]) == ("2", "1", "183600.0")


def test_blocked_is_not_explained_where_nothing_is(class_):
    assert "A verdict is blocked where" not in class_page(UNIT, class_)


@pytest.mark.parametrize("page", ["class", "student"])
def test_pages_need_nothing_else_and_run_nothing(class_, page):
    # Invariant: no script, no address, and what a student's code says is text.
    html = class_page(UNIT, class_) if page == "class" else student_page(class_[1])
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert not re.search(r'(?:src|href)\s*=\s*"?+(?!data:|feedback/\w+\.html")', html)
    assert "http" not in html
    assert "@import" not in html


def test_student_page_has_each_criterion_and_the_hints(class_):
    html = student_page(class_[1])
    for exercise in (DOUBLE, TOTAL):
        for criterion in exercise.rubric:
            assert criterion.name in html
    assert "Keep the dtype" in html
    assert "float32; expected int64" in html


def test_student_page_without_a_grade_says_what_to_do(class_):
    assert "It is empty." in student_page(class_[-1])


def test_csv_is_the_same_numbers_and_no_formula(class_):
    class_.append(graded("=cmd()", judged(DOUBLE, P, P), judged(TOTAL, F, B, seen="no")))
    rows = list(csv.DictReader(io.StringIO(class_csv(class_))))
    assert [float(row["points"]) for row in rows] == [each.report.points for each in class_]
    assert rows[1]["first_missed"] == "whole numbers too"
    assert rows[-1]["student"] == "'=cmd()"


def test_an_empty_class_has_a_page():
    assert "Nothing has been graded." in class_page(UNIT, [])
    assert class_csv([]).startswith("student,")


def test_pages_are_written_once(class_, tmp_path):
    # Invariant: a page that is right already is left alone.
    path = write_pages(tmp_path, UNIT, class_)
    before = path.stat().st_mtime_ns
    assert write_pages(tmp_path, UNIT, class_).stat().st_mtime_ns == before
    assert sorted(page.stem for page in (tmp_path / "feedback").iterdir()) == [m.student for m in class_]


def test_verdicts_come_back_as_they_were_kept(class_, tmp_path: Path):
    # Invariant: what was kept is what was graded; what is torn or of another rubric is nothing.
    kept = ResultStore(tmp_path)
    for each in class_:
        kept.keep(each)
    assert list(kept) == class_
    (tmp_path / "ann.json").write_text('{"student": "ann"')
    text = (tmp_path / "ben.json").read_text()
    (tmp_path / "ben.json").write_text(text.replace("whole numbers too", "another criterion"))
    assert kept.find("ann") is None
    assert kept.find("ben") is None
