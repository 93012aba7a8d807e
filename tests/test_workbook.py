"""The whole workbook: what runs, what is reported, and what is said of a unit that fails."""

import io
import re
import sys
from pathlib import Path

import pytest

from tests.sample_source import EFFORTS, SOURCE, write_unit
from workbook import build as workbook_build
from workbook import execute
from workbook.build import (
    GradingFailed,
    Task,
    UnitResult,
    blocked_points,
    in_rounds,
    parameters_of,
    run,
    shortfall,
)
from workbook.commands import make_workbook
from workbook.errors import CommandFailed
from workbook.paths import Places
from workbook.unit import read_unit


class Output(io.StringIO):
    """Standard error, of a terminal or of a batch job."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, terminal: bool) -> str:
    """What is said of two tasks, of which one fails."""
    output = Output(terminal)
    monkeypatch.setattr(sys, "stderr", output)
    result = UnitResult(read_unit(write_unit(tmp_path)))

    def fail() -> None:
        raise GradingFailed("no grades")

    run([Task("a unit", result, lambda: None), Task("another unit", result, fail)], jobs=1)
    assert result.failures == ["another unit: no grades"]
    return output.getvalue()


def test_a_log_gets_one_plain_line_a_task(monkeypatch, tmp_path):
    # Invariant: no bar, no colour, no cursor movement; the line says how far it is and what ended.
    lines = said(monkeypatch, tmp_path, terminal=False)
    assert re.fullmatch(r"\[1/2\] a unit \(0\.0 s\)\n\[2/2\] another unit FAILED \(0\.0 s\)\n", lines)


def test_a_terminal_gets_a_bar(monkeypatch, tmp_path):
    # Invariant: the tasks that are under way are named beside it, those that ended are counted and told.
    text = said(monkeypatch, tmp_path, terminal=True)
    assert "2/2" in text.split("\r")[-1]
    assert "another unit]" in text
    assert "[1/2] a unit (0.0 s)\n" in text


def test_tasks_of_one_unit_do_not_run_side_by_side(tmp_path):
    # Invariant: every task comes once, those of a unit in their order, with the other units' between them.
    units = {"a": 3, "b": 2, "c": 3}
    result = UnitResult(read_unit(write_unit(tmp_path)))
    tasks = [[Task(f"{name}{n}", result, lambda: None) for n in range(units[name])] for name in units]
    assert [task.name for task in in_rounds(tasks)] == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2"]


def test_every_unit_runs_with_each_engine_that_it_knows(tmp_path):
    # Invariant: simulated ranks and local processes for a unit with the parameter `on`, once for one without;
    # digits where a unit asks for data; no parameter that a unit does not have.
    both = read_unit(write_unit(tmp_path))
    assert parameters_of(both) == {
        "executed on simulated ranks": {"on": "simulated"},
        "executed on local processes": {"on": "processes"},
    }
    plain = read_unit(write_unit(tmp_path, SOURCE.replace('on = "simulated"', 'dataset = "fashion_mnist"')))
    assert parameters_of(plain) == {"executed": {"dataset": "digits"}}


def test_a_lost_point_is_explained():
    criteria = [
        {"name": "first", "points": 1, "max_points": 1, "verdict": "passed", "seen": "All well."},
        {"name": "second", "points": 0, "max_points": 2, "verdict": "failed", "seen": "3.\nAnd more."},
    ]
    exercise = {"name": "one_more", "points": 1, "max_points": 3, "criteria": criteria}
    expected = "80_sample: the solution of one_more earns 1 of 3 points; second: failed. 3."
    assert shortfall("80_sample", exercise) == expected


BLOCKED = {
    "name": "with Horovod",
    "points": 0,
    "max_points": 2,
    "verdict": "blocked",
    "seen": "Not judged: no.",
}


def test_what_this_machine_lacks_is_no_failure():
    # Invariant: blocked for want of a library counts apart; blocked by a grader's own error does not.
    exercise = {"name": "six_steps", "points": 0, "max_points": 2, "criteria": [BLOCKED]}
    assert blocked_points(exercise) == 0
    assert blocked_points(exercise | {"lacks": "Horovod is not installed here."}) == 2


def graded_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, criteria: list[dict[str, object]]
) -> UnitResult:
    """The result of a unit whose grading found these rows, on a machine that lacks Horovod."""
    exercise = {"name": "six_steps", "points": sum(each["points"] for each in criteria), "criteria": criteria}
    exercise |= {"max_points": sum(each["max_points"] for each in criteria), "lacks": "Install Horovod."}
    grades = {"points": exercise["points"], "exercises": [exercise]}
    monkeypatch.setattr(workbook_build, "checked", lambda notebook, unit: grades)
    result = UnitResult(read_unit(write_unit(tmp_path)))
    workbook_build._grade(result, Places(tmp_path))
    return result


def test_a_blocked_exercise_is_told_and_not_counted_as_solved(monkeypatch, tmp_path):
    result = graded_with(monkeypatch, tmp_path, [BLOCKED])
    assert (result.failures, result.passed, result.blocked) == ([], 0, 2)
    assert result.lacking == {"six_steps": "Install Horovod."}


def test_a_row_that_fails_beside_blocked_ones_is_a_failure(monkeypatch, tmp_path):
    # Invariant: the row that failed is named, not a blocked one that stands before it.
    failed = {"name": "speed", "points": 0, "max_points": 1, "verdict": "failed", "seen": "Slow."}
    result = graded_with(monkeypatch, tmp_path, [BLOCKED, failed])
    assert result.failures == [
        "80_sample: the solution of six_steps earns 0 of 3 points; speed: failed. Slow."
    ]
    assert result.blocked == 0


def test_what_fails_is_said_and_nothing_old_is_shown(tmp_path: Path, capfd, monkeypatch):
    # Invariant: a unit that raises and has no grader gives a sentence for each, the table is printed all the
    # same, and no page of it is left from before.
    # Its cells take no time: a kernel that does not answer is told sooner than a unit's would be.
    monkeypatch.setattr(execute, "CELL_SECONDS", 120)
    write_unit(tmp_path, SOURCE.replace("assert 1 + 1 == 2", "raise OSError('no disk')"))
    places = Places(tmp_path)
    places.pages.mkdir(parents=True)
    (places.pages / "80_sample.html").write_text("old")
    with pytest.raises(CommandFailed) as caught:
        make_workbook(places, lambda _: EFFORTS, jobs=2)
    processes, simulated, grades = sorted(caught.value.complaints)
    assert simulated.startswith("80_sample executed on simulated ranks: the cell that begins with")
    assert "raised OSError: no disk" in simulated
    assert "raised OSError: no disk" in processes
    assert grades.startswith("80_sample graded: There is no unit")
    assert "80_sample" in capfd.readouterr().out
    assert "80_sample" not in (places.pages / "index.html").read_text()
    assert not (places.pages / "80_sample.html").exists()
