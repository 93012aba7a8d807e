"""Progress: kept outside of notebooks, whatever happens to them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graders import check, commands, hint, predict, progress
from graders.grading.report import Report
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer
from graders.student.progress_log import hints_seen, progress_file, read_records, record_check
from graders.student.progress_table import ProgressTable, Standing, progress_table
from tests import sample_unit


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    with sample_unit.registered():
        yield tmp_path


def double(x: Any) -> Any:
    return 2 * x


def half_right(x: Any) -> Any:
    return 2.0 * x


half_right.__name__ = "double"


def stub(x: Any) -> Any:
    raise NotImplementedError


stub.__name__ = "double"


def standing(name: str = "double") -> tuple[str, float, int, int, int]:
    (found,) = [s for s in progress_table(list(read_records())).standings if s.exercise.name == name]
    return found.state, found.points, found.attempts, found.hints, found.minutes_left


def test_nothing_done_yet() -> None:
    # Every exercise of every unit is there, not attempted, with all its minutes left.
    assert standing() == ("not attempted", 0, 0, 0, 5)
    assert standing("total") == ("not attempted", 0, 0, 0, 10)


def test_the_table_says_where_to_go_on() -> None:
    # The first exercise, in the order of the units, that has not earned all its points.
    table = progress_table(list(read_records()))
    first, second, *_ = (each.exercise for each in table.standings)
    assert table.next_step == f"Next: {first.name}, in {first.unit}."
    assert table.next_step in table.html()
    assert table.next_step in repr(table)
    solved = [replace(each, points=each.exercise.points, attempts=1) for each in table.standings]
    begun = ProgressTable((solved[0], *table.standings[1:]))
    assert begun.next_step == f"Next: {second.name}, in {second.unit}."
    assert ProgressTable(tuple(solved)).next_step == "All exercises are solved."


def test_a_unit_that_nobody_has_begun_is_one_line() -> None:
    # Invariant: a unit's exercises have rows if one was checked or had a hint, or if it is the next unit.
    table = progress_table(list(read_records()))
    first, *_, last = table.standings

    def shown(*standings: Standing) -> set[str]:
        now = {each.exercise.name: each for each in (*table.standings, *standings)}
        unit = {each.exercise.name: each.exercise.unit for each in table.standings}
        rows = ProgressTable(tuple(now.values())).rows()
        return {unit[row.texts[0]] for row in rows if not row.total}

    assert first.exercise.unit != last.exercise.unit
    assert shown() == {first.exercise.unit}
    for begun in (replace(last, attempts=1), replace(last, hints=1)):
        assert shown(begun) == {first.exercise.unit, last.exercise.unit}
    solved = [replace(each, points=each.exercise.points, attempts=1) for each in table.standings]
    assert shown(*solved) == {each.exercise.unit for each in table.standings}


def test_a_check_is_one_record() -> None:
    # What, when, how many points, which verdicts, and how many hints it took.
    hint("double")
    check(half_right)
    *_, record = read_records()
    assert {key: record[key] for key in record.keys() - {"time", "answer"}} == {
        "event": "check",
        "unit": "90_sample",
        "exercise": "double",
        "points": 2,
        "max_points": 3,
        "verdicts": {"doubles": "passed", "whole numbers too": "failed"},
        "hints": 1,
        "kind": "another shape or dtype",
    }
    assert record["time"].endswith("+00:00")
    assert len(record["answer"]) == 16


def test_from_not_attempted_to_solved() -> None:
    # A check of the stub is no attempt; the best points count; a solved exercise takes no more time.
    check(stub)
    assert standing() == ("not attempted", 0, 0, 0, 5)
    check(half_right)
    assert standing() == ("under way", 2, 1, 0, 5)
    check(double)
    check(half_right)
    assert standing() == ("solved", 3, 3, 0, 0)


def test_hints_count_by_the_furthest() -> None:
    # To read the first one again is no further hint.
    hint("double")
    hint("double")
    hint("double", 1)
    assert hints_seen("90_sample", "double") == 2
    assert standing()[3] == 2


def test_torn_and_foreign_lines_are_passed_over(home: Path) -> None:
    # A crash in the midst of a line, or an editor, costs that line only.
    check(double)
    with progress_file().open("ab") as file:
        file.write(b'{"event": "check", "unit": "90_sa\n[1]\n\xff\xfe\n')
        file.write(b'{"event": "check", "unit": 1, "exercise": 2}\n')
    check(double)
    assert standing()[:3] == ("solved", 3, 2)


def test_many_checks_at_once_lose_none(home: Path) -> None:
    # Notebooks of several units may be open, and append at the same time.
    result = grade(sample_unit.DOUBLE, kernel_answer(double, "double"))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: record_check(result), range(200)))
    lines = progress_file().read_text().splitlines()
    assert len(lines) == 200
    assert all(json.loads(line)["points"] == 3 for line in lines)


def test_predictions_stand_beside_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    # They outlive the notebook; what nobody answered is asked again; a guess that was kept stays once the
    # measurement is known.
    guesses = predict("90_sample", milliseconds=16, who_waits="all", messages=None)
    assert "messages." in capsys.readouterr().out
    guesses.measured(milliseconds=8.0, who_waits="All", messages=8)
    again = predict("90_sample", milliseconds=8, who_waits=None, messages=8)
    assert "your first prediction, 16, stays" in capsys.readouterr().out
    assert [row.texts for row in again.rows.values()] == [
        ("milliseconds", "16", "8", "2 times too much"),
        ("who waits", "all", "All", "the same"),
        ("messages", "8", "8", "the same"),
    ]
    for shown in (again.html(), repr(again)):
        assert "2 times too much" in shown
    assert predict("91_other", milliseconds=None).rows["milliseconds"].measured is None
    with pytest.raises(KeyError, match="seconds"):
        guesses.measured(seconds=3)
    # Asked in the middle of a unit, they stand in the same table, and are kept as well.
    capsys.readouterr()
    again.ask(seconds=None, bytes=7)
    assert capsys.readouterr().out.endswith("again: seconds.\n")
    again.ask(seconds=6)
    again.measured(seconds=3)
    assert again.rows["seconds"].apart == "2 times too much"
    assert predict("90_sample", bytes=None).rows["bytes"].predicted == 7


def test_unwritable_home_does_not_stop_a_check(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    # The table is shown all the same, and says that it was not recorded.
    (home / "file").touch()
    monkeypatch.setenv("COURSE_HOME", str(home / "file"))
    report = check(double)
    assert isinstance(report, Report)
    assert report.passed
    assert "could not be recorded" in report.text()
    assert "Hint 1 of 2" in hint("double").sentence
    guesses = predict("90_sample", milliseconds=16)
    guesses.measured(milliseconds=8)
    assert guesses.rows["milliseconds"].apart == "2 times too much"
    assert standing()[0] == "not attempted"


def test_progress_shows_units_exercises_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    # On a terminal, in a notebook and as the command `course progress`, with the totals below.
    check(half_right)
    hint("double")  # on what was seen
    hint("double")
    capsys.readouterr()
    table = progress()
    printed = capsys.readouterr().out
    assert commands.progress() == commands.ALL_POINTS
    assert "double" in capsys.readouterr().out
    html = table._repr_mimebundle_()["text/html"]
    told = (
        "90_sample",
        "double",
        "… under way",
        "2/3",
        "1/2",
        "○ not attempted",
        "together",
        "0 of 2 solved",
    )
    for shown in (printed, html):
        assert all(text in shown for text in told)
