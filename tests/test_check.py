"""`check`, `hint` and `reset`: what a tired student sees."""

import functools
import importlib.util
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import torch.distributed as dist
from jupyter_core.utils import run_sync
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib import launch
from course_lib.runtime.communication.torch_versions import RENAMED
from graders import check, commands, hint, reset
from graders.grading import registry
from graders.grading.answer import Answer, AnswerFailed, FailureKind
from graders.grading.exercise import REGISTRY, Criterion, Exercise, Finding, Findings, Verdict
from graders.grading.kinds import HINTS, Kind
from graders.grading.report import Report
from graders.grading.rng import Rng
from graders.grading.run import ExerciseResult, grade
from graders.guest.usual_torch import default_device, usual_torch
from graders.host.grade_submission import grade_file
from graders.student import given, second_way
from graders.student.display import Notice
from graders.student.kernel_answer import kernel_answer
from graders.student.progress_log import read_records
from graders.student.reset_cell import CannotReset, reset_in_file
from graders.submissions import released_cells
from graders.submissions.read import from_notebook
from tests import sample_unit
from tests.answers import solved
from tests.sample_unit import DOUBLE, TOTAL
from workbook.run_notebook import OwnSocketsManager

# Cells that the tests run in one kernel build on each other.
pytestmark = pytest.mark.xdist_group("check")


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The sample unit is there, progress goes to a folder of the test, originals too."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(released_cells, "DIRECTORY", tmp_path / "stubs")
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    with sample_unit.registered():
        yield


def double(x: Any) -> Any:
    return 2 * x


def total(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def report_of(answer: Any, exercise: Exercise = DOUBLE) -> Report:
    result = grade(exercise, kernel_answer(answer, exercise.name), Rng(1))
    assert not result.mistake
    return Report(exercise.unit, (result,))


def verdicts(answer: Any, exercise: Exercise = DOUBLE) -> list[str]:
    return [each.verdict.value for each in report_of(answer, exercise).exercises[0].criteria]


def seen(answer: Any, exercise: Exercise = DOUBLE) -> str:
    return report_of(answer, exercise).exercises[0].criteria[0].seen


# --- verdicts


def test_right_answer_passes() -> None:
    # All criteria, all points, and the plain text that nbgrader reads is the number of points.
    report = check(double)
    assert isinstance(report, Report)
    assert report.passed
    assert report._repr_mimebundle_()["text/plain"] == "3"
    assert check(total)._repr_mimebundle_()["text/plain"] == "2"


def test_wrong_answer_loses_only_what_is_wrong() -> None:
    # Multiplying by 2.0 turns whole numbers into floats.
    report = report_of(lambda x: 2.0 * x)
    assert [each.verdict for each in report.exercises[0].criteria] == [Verdict.PASSED, Verdict.FAILED]
    assert report.points == 2
    assert "float32[2]; expected int64[2]" in report.text()
    assert "Keep the dtype" in report.text()


def test_stub_is_not_attempted() -> None:
    # nbgrader's stub and one without brackets; but not PyTorch's complaint about a missing operation.
    def stub(x: Any) -> Any:
        raise NotImplementedError

    def stub_called(x: Any) -> Any:
        raise NotImplementedError()

    def unsupported(x: Any) -> Any:
        raise NotImplementedError("could not run 'aten::mul'")

    for exercise in (DOUBLE, TOTAL):
        assert set(verdicts(stub, exercise)) == {"not attempted"}
        assert set(verdicts(stub_called, exercise)) == {"not attempted"}
        assert verdicts(unsupported, exercise) == ["failed", "not judged"]


def test_exception_is_told_with_the_students_line() -> None:
    # No frame of the graders or of PyTorch stands between the error and the line that caused it; what the
    # grader called the answer with is there, on ranks once for all that were given the same.
    def broken(x: Any) -> Any:
        return x + torch.zeros(7)

    assert verdicts(broken) == ["failed", "not judged"]
    said = seen(broken).splitlines()
    assert said[0].startswith("RuntimeError: The size of tensor a (3)")
    assert re.fullmatch(r"  in broken, test_check.py, line \d+: return x \+ torch.zeros\(7\)", said[1])
    assert re.fullmatch(r"  with x=float32\[3\]", said[2])
    assert len(said) == 3
    on_ranks = seen(broken, TOTAL)
    assert on_ranks.count("    with x=float32[4]\n") == on_ranks.count("torch.zeros(7)") == 1


def test_deadlock_is_told() -> None:
    # Who waits for whom, and in which line.
    def sends_first(x: torch.Tensor) -> torch.Tensor:
        dist.send(x, (dist.get_rank() + 1) % 3)
        return x

    said = seen(sends_first, TOTAL)
    assert "rank 0 waits for rank 1 to receive" in said
    assert "test_check.py, line" in said


def test_exit_does_not_end_the_kernel() -> None:
    # sys.exit() in an answer is a failure like any other.
    def leaves(x: Any) -> Any:
        raise SystemExit(3)

    assert verdicts(leaves) == ["failed", "not judged"]


def test_interrupt_is_the_students_own() -> None:
    # The stop button stops the check.
    def interrupted(x: Any) -> Any:
        raise KeyboardInterrupt

    answer = kernel_answer(interrupted, "double")
    with pytest.raises(KeyboardInterrupt):
        grade(DOUBLE, answer, Rng(1))


@pytest.mark.parametrize(
    "value", [None, "6", [1], 3.5, object(), torch.zeros(2), double], ids=lambda value: type(value).__name__
)
def test_strange_results_fail_without_an_error(value: Any) -> None:
    # Whatever an answer returns, the table says what it is.
    assert verdicts(lambda x: value)[0] == "failed"


def test_result_that_is_no_plain_data_is_named() -> None:
    # Where it stands, what it is, and what would do.
    assert "the result is a numpy.ndarray; what can be handed over is None, bool" in seen(lambda x: x.numpy())
    said = seen(lambda x: [x, {"y": x.numpy()}], TOTAL)
    assert "rank 0's result[1]['y'] is a numpy.ndarray" in said


def test_bad_launch_inside_an_answer_is_the_answers_failure() -> None:
    # A launch that the student's own code makes is theirs to mend.
    def launches(x: Any) -> Any:
        return launch(print, ranks=0)

    assert verdicts(launches) == ["failed", "not judged"]
    assert "BadLaunch" in seen(launches)


SWITCHED_ON: dict[str, Callable[[], object]] = {
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "another dtype": lambda: torch.set_default_dtype(torch.float64),
    "another device": lambda: torch.set_default_device("meta"),
    "gradients off": lambda: torch.set_grad_enabled(False),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "warnings as errors": lambda: warnings.simplefilter("error"),
}
"""What a cell may have left on, for the whole kernel."""


@pytest.fixture
def afterwards_as_before() -> Iterator[None]:
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        with usual_torch(), warnings.catch_warnings():
            yield
            torch.set_default_device(None)
    finally:
        torch.use_deterministic_algorithms(deterministic)


@pytest.mark.usefixtures("afterwards_as_before")
@pytest.mark.parametrize("what", SWITCHED_ON)
def test_what_a_cell_has_switched_on_changes_no_verdict(what: str) -> None:
    # NaN that must stay to be seen, models and gradients of float32, also on ranks; and it stays on.
    answers = [solved("01_single_gpu")[name] for name in ("train_step", "fit")]
    answers += [solved("02_data_parallel")[name] for name in ("make_buckets", "Bucket", "train_ddp")]
    SWITCHED_ON[what]()
    switched = torch.get_default_dtype(), torch.is_anomaly_enabled(), torch.is_grad_enabled()
    for answer in answers:
        report = check(answer)
        assert isinstance(report, Report)
        assert report.passed, report.text()
    assert switched == (torch.get_default_dtype(), torch.is_anomaly_enabled(), torch.is_grad_enabled())
    assert default_device().type == ("meta" if what == "another device" else "cpu")


def test_printing_is_shown_with_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    # What the answer prints is kept for its author, cut to a length that can be read; nothing is on stderr.
    def chatty(x: Any) -> Any:
        for number in range(100):
            print("line", number)
        return 2 * x

    report = report_of(chatty)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert "line 19" in report.text()
    assert "line 20" not in report.text()
    assert "80 more lines" in report.html()


def total_by_old_names(x: torch.Tensor) -> torch.Tensor:
    """With the names that these two collectives had before PyTorch 2.13."""
    parts = torch.cat([x, x.new_zeros(-len(x) % dist.get_world_size())])
    own = parts.new_empty(len(parts) // dist.get_world_size())
    dist.reduce_scatter_tensor(own, parts)
    dist.all_gather_into_tensor(parts, own)
    return parts[: len(x)]


@pytest.mark.filterwarnings("error", f"ignore:{RENAMED}:FutureWarning")
def test_old_names_of_collectives_are_not_spoken_of_under_the_verdict() -> None:
    # They are right; what the student's code really prints stays, and so do all other warnings.
    assert verdicts(total_by_old_names, TOTAL)[0] == "passed"

    def warns(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("something else is deprecated.", FutureWarning, stacklevel=1)
        return total(x)

    assert "something else" in seen(warns, TOTAL)
    for old in ("all_gather_tensor", "reduce_scatter_tensor_autograd"):
        text = f"`torch.distributed._functional_collectives.{old}` is deprecated. Please use another."
        warnings.warn(text, FutureWarning, stacklevel=1)


def test_html_of_hostile_text_is_only_text() -> None:
    # What a student's code says is shown, never interpreted.
    def hostile(x: Any) -> Any:
        raise ValueError("<script>alert(1)</script> \x1b[31mred\x1b[0m \ud800")

    html = report_of(hostile).html()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in html
    html.encode("utf-8")


def test_what_was_seen_is_no_formula_and_fits_the_page() -> None:
    # JupyterLab sets what stands between two dollar signs as a formula, unless it is told not to; and a word
    # as long as a mask of CPUs may be broken anywhere.
    def costly(x: Any) -> Any:
        raise ValueError("my $5 sets: my $5 sets" + 100 * "0x")

    html = report_of(costly).html()
    assert html.startswith('<div class="mathjax_ignore">')
    assert "$5 sets: my $5" in html
    assert re.search(r'<td style="[^"]*overflow-wrap:anywhere;[^"]*">[^<]*(<pre[^>]*>)?[^<]*\$5 sets', html)


def test_verdicts_are_told_by_word_and_sign_not_by_colour() -> None:
    # Every verdict stands there in words, with a sign, and black on light whatever the page is like.
    html = report_of(lambda x: 2.0 * x).html()
    assert "✔ passed" in html
    assert "✘ failed" in html
    assert 'scope="col"' in html
    assert "color:#000" in html


def test_rows_that_passed_fold_and_the_others_stay_open() -> None:
    # On a page what was seen of them is behind a fold, on a terminal only their names are left.
    half, whole = report_of(lambda x: 2.0 * x), report_of(double)
    opened, folded = half.html().split("<details")
    assert "✘ failed" in opened
    assert "✔ passed" not in opened
    assert "✔ passed: doubles</span></summary>" in folded
    assert half.exercises[0].criteria[0].seen in unescape(folded)
    assert "<table" not in whole.html().split("<details")[0]
    assert "✔ passed: doubles, whole numbers too" in whole.text()
    assert whole.exercises[0].criteria[0].seen not in whole.text()


def judged(*rows: tuple[Criterion, bool | AnswerFailed]) -> ExerciseResult:
    """The result of an exercise with these rows, each of which passed or not, or came to no end."""

    def judge(answer: Answer, rng: Rng) -> Findings:
        for criterion, found in rows:
            if isinstance(found, AnswerFailed):
                raise found
            yield criterion.name, Finding(found, "seen")

    exercise = Exercise("90_sample", "double", tuple(row for row, _ in rows), judge, 1, 1)
    return grade(exercise, kernel_answer(double, "double"), Rng(1))


DEADLOCK = AnswerFailed(FailureKind.DEADLOCK, "No rank can go on.")


def test_a_deadlock_in_a_later_row_has_that_rows_hint_first() -> None:
    # The ordinary case came to an end, so what the row is about, such as an odd number of ranks, is why.
    ordinary, odd = Criterion("the sum", 1, "Add up."), Criterion("odd", 1, "One rank has no partner.")
    first, second = judged((ordinary, DEADLOCK), (odd, True)), judged((ordinary, True), (odd, DEADLOCK))
    assert first.criteria[0].hint == HINTS[Kind.DEADLOCK]
    assert second.criteria[1].hint == f"One rank has no partner. {HINTS[Kind.DEADLOCK]}"
    assert second.kind is Kind.DEADLOCK


def test_what_is_not_judged_is_told_in_a_line_with_the_row_that_failed() -> None:
    # Also where a row on the way is not judged itself; and the table has none of them.
    rows = [Criterion("in place", 1, "x"), Criterion("any layout", 1, "x", needs=("in place",))]
    rows += [Criterion(name, 1, "x", needs=("any layout",)) for name in ("odd", "groups")]
    result = judged((rows[0], False), (rows[1], DEADLOCK), (rows[2], True), (rows[3], True))
    report = Report("90_sample", (result,))
    line = '– not judged: any layout, odd, groups. "in place" has to pass first.'
    assert line in report.text()
    assert line in unescape(report.html())
    assert report.text().count("not judged") == report.html().count("not judged") == 1
    assert "No rank can go on." not in report.text()


@pytest.mark.parametrize(
    ("name", "advice"), [("zipfile", "write `import zipfile`"), ("mine", "run that cell")]
)
def test_an_unknown_name_is_told_with_what_to_do(name: str, advice: str) -> None:
    # A module of Python's is imported; what a cell defines is run.
    def lacks(x: Any) -> Any:
        return eval(name)

    assert advice in seen(lacks)


# --- graders that go wrong


def broken_exercise(*findings: str | Exception) -> Exercise:
    def judge(answer: Answer, rng: Rng) -> Findings:
        for finding in findings:
            if isinstance(finding, Exception):
                raise finding
            yield finding, FINE

    rubric = (Criterion("first", 1, "x"), Criterion("second", 1, "x"))
    return Exercise("90_sample", "double", rubric, judge, 1, 1)


FINE = Finding(True, "fine")


@pytest.mark.parametrize(
    ("findings", "verdict", "said"),
    [
        (["first", ZeroDivisionError("oops")], "blocked", "ZeroDivisionError: oops"),
        (["first"], "blocked", 'nothing on "second"'),
        (["first", "first"], "blocked", 'yielded "first" where its rubric has "second"'),
        (["first", "third"], "blocked", 'yielded "third"'),
        (["first", "second", "second"], "passed", ""),
    ],
    ids=["raises", "stops early", "out of order", "unknown", "too many"],
)
def test_graders_own_mistake_is_not_blamed_on_the_student(
    findings: list[str | Exception], verdict: str, said: str
) -> None:
    # What the grader has not judged is blocked, with an apology, and the mistake is kept for the course.
    result = grade(broken_exercise(*findings), kernel_answer(double, "double"), Rng(1))
    assert [each.verdict.value for each in result.criteria] == ["passed", verdict]
    assert result.mistake
    assert said in result.criteria[1].seen
    assert not said or "not counted as your mistake" in result.criteria[1].seen


def test_unknown_driver_is_the_graders_mistake() -> None:
    # A driver's name is the grader's; a wrong one costs the student nothing but the wait.
    def nothing(answer: Answer) -> None: ...

    nothing.__module__ = "graders.units.unit_99.drivers"

    def judge(answer: Answer, rng: Rng) -> Findings:
        answer.call(nothing)
        yield "first", FINE

    exercise = Exercise("90_sample", "double", (Criterion("first", 1, "x"),), judge, 1, 1)
    result = grade(exercise, kernel_answer(double, "double"), Rng(1))
    assert "There is no driver unit_99.nothing" in result.criteria[0].seen
    assert result.criteria[0].verdict is Verdict.BLOCKED


# --- given something else


class Wrapper(torch.nn.Module):
    """An instance of a class is not the class."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "check got nothing to check. Give it the function itself, without calling it"),
        (Wrapper(), "check got an object of the class Wrapper. Give it the class itself: check(Wrapper)"),
        ("double", "without quotes: check(double)"),
        (3, "check got a int"),
        (torch.zeros(2), "check got a Tensor"),
        (lambda x: x, 'There is no exercise named "<lambda>"'),
        (torch.add, 'There is no exercise named "add"'),
        (functools.partial(functools.partial(print)), 'named "print"'),
    ],
    ids=["None", "instance", "text", "number", "tensor", "lambda", "another function", "partial"],
)
def test_what_is_no_exercise_gives_a_sentence(given: object, said: str) -> None:
    # No traceback, no points, and what to do.
    notice = check(given)
    assert isinstance(notice, Notice)
    assert said in notice.sentence
    assert notice._repr_mimebundle_()["text/plain"] == "0"


def test_misspelt_name_finds_its_exercise() -> None:
    # The nearest name is offered.
    def doubel(x: Any) -> Any:
        return x

    assert "Did you mean double?" in repr(check(doubel))
    assert "Did you mean double?" in repr(hint("doubel"))


def test_same_name_in_two_units(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The notebook's name decides; without one the student is asked.
    monkeypatch.setitem(REGISTRY, "91_other", {"double": TOTAL})
    assert "Say which: check(double, unit='90_sample')" in repr(check(double))
    assert isinstance(check(double, unit="90_sample"), Report)
    assert 'no unit "92"' in repr(check(double, unit="92"))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "90_sample" / "90_sample.ipynb"))
    assert isinstance(check(double), Report)


def test_without_a_notebook_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    # In a plain interpreter nothing shows itself.
    check(double)
    assert "✔ passed" in capsys.readouterr().out


# --- hints


def test_hints_come_one_by_one() -> None:
    # Each call shows the next one; one that has been seen can be read again without moving on.
    assert "Hint 1 of 2 for double: Multiply." in hint("double").sentence
    assert "Hint 2 of 2 for double: Multiply by two." in hint("double").sentence
    assert "You have seen all 2 hints" in hint("double").sentence
    assert "Hint 1 of 2" in hint(double, 1).sentence
    assert "You have seen all 2 hints" in hint("double").sentence


def test_the_first_hint_is_on_what_the_last_check_saw() -> None:
    # Once for each kind of failure, then the exercise's own go on; a criterion's hint does not stand beside a
    # deadlock, which it says nothing about.
    def waits(x: torch.Tensor) -> torch.Tensor:
        dist.recv(x, (dist.get_rank() + 1) % dist.get_world_size())
        return x

    def halves(x: Any) -> Any:
        return x / 2

    def floats(x: Any) -> Any:
        return 2.0 * x

    waits.__name__, halves.__name__, floats.__name__ = "total", "double", "double"
    report = check(waits)
    assert isinstance(report, Report)
    assert report.exercises[0].criteria[0].hint == HINTS[Kind.DEADLOCK]
    assert hint("total").sentence == f"Your last check saw a deadlock. {HINTS[Kind.DEADLOCK]}"
    check(halves)
    first, second, third = (hint("double").sentence for _ in range(3))
    assert first.startswith("Your last check saw the right result times a number.")
    assert f"{HINTS[Kind.SCALED]}\nThe next one:" in first
    assert second.startswith("Hint 1 of 2")
    check(halves)
    assert third.startswith("Hint 2 of 2")
    assert "all 2 hints" in hint("double").sentence
    check(floats)
    assert "another shape" in hint("double").sentence

    def twice(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        dist.all_reduce(x.clone())
        return x

    twice.__name__ = "total"
    check(twice)
    assert "more calls, messages or bytes" in hint("total").sentence


def test_a_single_hint_is_told_of_in_the_singular() -> None:
    hint("global_accuracy")
    assert "You have seen the only hint for global_accuracy." in hint("global_accuracy").sentence
    assert "global_accuracy has one hint; there is no hint 2." in hint("global_accuracy", 2).sentence


def test_hints_that_are_not_there() -> None:
    # A sentence for each way of asking for nothing.
    assert "total has no hints" in hint("total").sentence
    assert "the hints 1 to 2; there is no hint 3" in hint("double", 3).sentence
    assert 'hint needs the name of an exercise, in quotes: hint("average' in hint().sentence


# --- reset


def notebook(*sources: str) -> nbformat.NotebookNode:
    """A student's notebook whose cells that define `double` are answer cells."""
    cells = [new_markdown_cell("# Sample")]
    for source in sources:
        cells.append(new_code_cell(source))
        if source.startswith("def double"):
            cells[-1].metadata["exercise"] = "double"
    return new_notebook(cells=cells)


def released(tmp_path: Path) -> None:
    """Keep the original of `double`, as the build does."""
    path = tmp_path / "90_sample.ipynb"
    nbformat.write(notebook(sample_unit.STUBS["double"]), path)
    released_cells.write_released_cells(path)


def test_reset_in_a_file_keeps_a_copy(tmp_path: Path) -> None:
    # The answer is the original again, everything else and the old notebook are untouched.
    released(tmp_path)
    path = tmp_path / "90_sample.ipynb"
    before = notebook("import torch", "def double(x): return 7", "x = 1")
    before.cells[2].outputs = [nbformat.v4.new_output("stream", text="old")]
    nbformat.write(before, path)
    said = reset_in_file(path, "double")
    after = nbformat.read(path, as_version=4)
    assert [cell.source for cell in after.cells[1:]] == ["import torch", sample_unit.STUBS["double"], "x = 1"]
    assert after.cells[2].outputs == []
    backup = tmp_path / "90_sample.before-reset-1.ipynb"
    assert str(backup) in said
    assert nbformat.read(backup, as_version=4).cells[2].source == "def double(x): return 7"
    reset_in_file(path, "double")
    assert (tmp_path / "90_sample.before-reset-2.ipynb").exists()


def test_reset_tells_of_duplicates(tmp_path: Path) -> None:
    # A copied answer cell is named, because only one of the two counts.
    released(tmp_path)
    path = tmp_path / "90_sample.ipynb"
    nbformat.write(notebook("def double(x): return 1", "x = 1", "def double(x): return 2"), path)
    said = reset_in_file(path, "double")
    assert "2 cells for double: number 2 and 4" in said
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells]
    assert sources[1] == "def double(x): return 1"
    assert sources[3] == sample_unit.STUBS["double"]


def test_reset_that_cannot_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Each reason is a sentence, and no file is changed.
    path = tmp_path / "90_sample.ipynb"
    nbformat.write(notebook("x = 1"), path)
    with pytest.raises(CannotReset, match="not installed here"):
        reset_in_file(path, "double")
    released(tmp_path)
    nbformat.write(notebook("x = 1"), path)
    with pytest.raises(CannotReset, match="has no cell for double"):
        reset_in_file(path, "double")
    assert commands.reset(tmp_path / "none.ipynb", "double") == commands.BAD_INPUT
    assert "There is no file" in capsys.readouterr().err
    assert commands.reset(path, "trouble") == commands.BAD_INPUT
    assert "Did you mean double?" in capsys.readouterr().err
    assert list(tmp_path.glob("*before-reset*")) == []


def test_reset_outside_of_a_notebook_names_the_command(tmp_path: Path) -> None:
    # There is no cell to replace.
    released(tmp_path)
    assert "course reset FILE double" in reset("double").sentence
    assert 'reset needs the name of an exercise, in quotes: reset("average' in reset(3).sentence


# --- in a real kernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A kernel in which the sample unit is registered."""
    home = tmp_path_factory.mktemp("kernel")
    path = home / "90_sample.ipynb"
    nbformat.write(notebook(sample_unit.STUBS["double"], "x = 1", sample_unit.STUBS["double"]), path)
    manager = OwnSocketsManager(kernel_name="python3")
    run_sync(manager.start_kernel)(
        cwd=str(Path(__file__).parents[1]),
        extra_arguments=["--HistoryManager.hist_file=:memory:"],
        env={**os.environ, "COURSE_HOME": str(home), "JPY_SESSION_NAME": str(path)},
    )
    setup = f"""
import sys; sys.path.insert(0, '')
from pathlib import Path
from tests import sample_unit
from course_lib import launch
from graders import check, hint, progress, reset
from graders.submissions import released_cells
from graders.grading.exercise import REGISTRY
REGISTRY[sample_unit.UNIT] = {{"double": sample_unit.DOUBLE, "total": sample_unit.TOTAL}}
released_cells.DIRECTORY = Path({str(home / "stubs")!r})
released_cells.write_released_cells(Path({str(path)!r}))
"""
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=200)
        reply, outputs = run(client, setup)
        assert reply["status"] == "ok", outputs
        yield client
    finally:
        client.stop_channels()
        run_sync(manager.shutdown_kernel)(now=True)


def run(client: Any, code: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Execute a cell; returns the reply, and each message that it puts out."""
    messages: list[dict[str, Any]] = []
    reply = client.execute_interactive(code, timeout=200, output_hook=messages.append)
    outputs = [{"type": m["msg_type"], **m["content"]} for m in messages if m["msg_type"] != "status"]
    return reply["content"], [o for o in outputs if o["type"] != "execute_input"]


def table(outputs: list[Any]) -> Any:
    """What a check in a kernel has returned."""
    return next(output["data"] for output in outputs if output["type"] == "execute_result")


def button(outputs: list[Any]) -> Any:
    """What it has shown beside that."""
    return next(output["data"] for output in outputs if output["type"] == "display_data")


def test_check_in_a_kernel_shows_the_table_once(kernel: Any) -> None:
    # One result with the table and the points, and no word on stdout or stderr.
    reply, outputs = run(kernel, "def double(x):\n    return 2.0 * x\ncheck(double)")
    assert reply["status"] == "ok"
    # Beside it is the button for hints, of which nothing is to be seen without widgets.
    assert [output["type"] for output in outputs if "data" in output and "text/plain" in output["data"]] == [
        "display_data",
        "execute_result",
    ]
    assert button(outputs)["text/plain"] == ""
    assert table(outputs)["text/plain"] == "2"
    assert "✘ failed" in table(outputs)["text/html"]


def test_errors_in_a_kernel_name_the_cell(kernel: Any) -> None:
    # The student's line is given as the notebook shows it.
    _, outputs = run(kernel, "import torch\ndef double(x):\n    return x + torch.zeros(9)\ncheck(double)")
    assert re.search(r"cell In\[\d+\], line 3: return x \+ torch.zeros\(9\)", table(outputs)["text/html"])


def test_source_of_a_class_in_a_kernel_is_found(kernel: Any) -> None:
    # `inspect.getsource` does not find a notebook's classes; graders may look at the source all the same.
    meter = "class Meter:\n    def read(self): return 1\n"
    _, outputs = run(kernel, meter + "from graders.student.kernel_answer import source_of\nsource_of(Meter)")
    assert outputs[0]["data"]["text/plain"] == repr(meter.strip())


def test_check_leaves_the_kernels_random_state_alone(kernel: Any) -> None:
    # A check between two draws changes nothing about the second.
    _, plain = run(kernel, "torch.manual_seed(3); torch.rand(1); torch.rand(1).item()")
    code = "torch.manual_seed(3); torch.rand(1); _ = check(double); torch.rand(1).item()"
    _, checked = run(kernel, code)
    assert checked[-1]["data"] == plain[-1]["data"]


def test_reset_in_a_kernel_replaces_the_cell(kernel: Any) -> None:
    # The notebook is asked to put the stub in this cell's place, and the copied cell is told of.
    reply, outputs = run(kernel, 'reset("double")')
    (payload,) = reply["payload"]
    assert payload["source"] == "set_next_input"
    assert payload["replace"] is True
    assert payload["text"] == sample_unit.STUBS["double"]
    assert "2 cells for double: number 2 and 4" in outputs[0]["data"]["text/html"]


def test_progress_in_a_kernel_is_a_table(kernel: Any) -> None:
    # Checks and hints of this kernel are in it.
    run(kernel, 'check(double)\nhint("double")')
    _, outputs = run(kernel, "progress()")
    assert [output["type"] for output in outputs] == ["execute_result"]
    rows = re.findall(r"<tr>(.*?)</tr>", outputs[0]["data"]["text/html"])
    (row,) = [row for row in rows if ">double<" in row]
    assert "… under way" in row
    assert ">1/2<" in row


# --- course check


FILES = {
    "none.ipynb": (None, "There is no file"),
    "folder.ipynb": ("folder", "is a folder"),
    "notes.txt": ("x = 1", "neither a notebook (.ipynb) nor a Python file (.py)"),
    "torn.ipynb": ('{"cells": [', "no valid JSON"),
    "list.ipynb": ("[1, 2]", "is no notebook: it has no cells"),
    "odd.ipynb": ('{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "damaged notebook"),
    "binary.py": (b"\xff\xfe\x00", "no text file in UTF-8"),
    "other.py": ("def something_else(): pass", "defines no exercise of any unit"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_file_gives_a_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Exit status 2, a sentence on stderr that says what to do, and nothing on stdout.
    content, said = FILES[name]
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content)
    assert commands.check(path, as_json=True) == commands.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert "Traceback" not in captured.err


def test_wrong_unit_gives_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # An unknown unit, and one that the file has nothing to do with.
    path = tmp_path / "mine.py"
    path.write_text("def something(): pass")
    assert commands.check(path, "90_sample") == commands.BAD_INPUT
    assert "defines none of the exercises of 90_sample, which are double, total" in capsys.readouterr().err
    assert commands.check(path, "77") == commands.BAD_INPUT
    assert 'There is no unit "77"' in capsys.readouterr().err


def test_a_second_way_is_there_to_read_once_the_exercise_is_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Folded under the table of a check that gives all points, and as a command; not a word of it before.
    monkeypatch.setattr(second_way, "FOLDER", tmp_path)
    (tmp_path / "90_sample.py").write_text('def double(x):\n    """A sum."""\n    return x + x\n')

    def halves(x: Any) -> Any:
        return x / 2

    halves.__name__ = "double"
    for report in (check(halves), check(total)):
        assert isinstance(report, Report)
        assert "second" not in report.html() + report.text()
    capsys.readouterr()
    assert commands.second_way("double") == commands.ALL_POINTS
    assert "x + x" not in (said := capsys.readouterr().out)
    assert "Solve double first" in said
    solved = check(double)
    assert isinstance(solved, Report)
    assert "<details><summary>A second way to do it</summary>" in solved.html()
    assert "return x + x" in solved.html()
    assert "course second-way double" in solved.text()
    capsys.readouterr()
    commands.second_way("double")
    assert capsys.readouterr().out == 'def double(x):\n    """A sum."""\n    return x + x\n'


def test_an_answer_built_of_another_that_is_wrong_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not before that other one has been checked, and no longer once it has been written anew.
    def total(x: torch.Tensor) -> torch.Tensor:
        return double(x) / 3

    def halves(x: Any) -> Any:
        return x / 2

    halves.__name__ = "double"

    def said() -> str:
        report = check(total)
        assert isinstance(report, Report)
        return report.text()

    right = double
    monkeypatch.setitem(total.__globals__, "double", halves)
    assert "uses double" not in said()
    check(halves)
    assert "This answer uses double (0 of" in said()
    monkeypatch.setitem(total.__globals__, "double", right)
    assert "uses double" not in said()


BUILT_ON_A_STUB = """
import torch
import torch.distributed as dist


def double(x):
    raise NotImplementedError()


def twice(x):
    return double(x)


def total(x):
    dist.all_reduce(x)
    return double(x) / 2
"""
NEEDS_DOUBLE = "It needs your double, where `raise NotImplementedError()` is still there"


@pytest.fixture
def built_on_a_stub(tmp_path: Path) -> Any:
    """A module whose `total` calls `double`, which nobody has written."""
    path = tmp_path / "answers_of_somebody.py"
    path.write_text(BUILT_ON_A_STUB)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_answer_that_needs_another_which_is_a_stub_says_so(built_on_a_stub: Any) -> None:
    report = check(built_on_a_stub.total)
    assert isinstance(report, Report)
    assert report.exercises[0].attempted
    assert report.points == 0
    text = " ".join(report.text().split())
    assert f"{NEEDS_DOUBLE}: write that first. Or have it checked with the reference" in text
    assert 'check(total, given="double").' in text
    # The stub itself is a stub.
    assert "○ not attempted" in check(built_on_a_stub.double).text()  # type: ignore[union-attr]


def test_a_hand_in_with_a_stub_that_others_need_says_so(tmp_path: Path) -> None:
    (tmp_path / "90_sample.py").write_text(BUILT_ON_A_STUB)
    report = grade_file(tmp_path / "90_sample.py", sample_unit.UNIT)
    seen = {result.exercise.name: {each.seen for each in result.criteria} for result in report.exercises}
    assert [text.partition(":")[0] for text in seen["total"]] == [NEEDS_DOUBLE]
    assert not any(NEEDS_DOUBLE in text for text in seen["double"])


def test_an_answer_is_checked_with_the_reference_in_place_of_a_stub(
    built_on_a_stub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The reference finds what the student's cells have imported, and the stub is there again afterwards.
    monkeypatch.setattr(given, "FOLDER", tmp_path)
    (tmp_path / "90_sample.py").write_text("def double(x):\n    return torch.add(x, x)\n")
    stub = built_on_a_stub.double
    report = check(built_on_a_stub.total, given="double")
    assert isinstance(report, Report)
    assert report.passed, report.text()
    assert "The reference stood in place of double." in report.text()
    assert built_on_a_stub.double is stub


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("treble", 'given="treble" is no other exercise of 90_sample: double.'),
        (("total",), 'given="total" is no other exercise of 90_sample: double.'),
    ],
)
def test_what_cannot_be_given_is_told(
    names: Any, said: str, built_on_a_stub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given, "FOLDER", tmp_path)
    assert "not part of this edition" in str(check(built_on_a_stub.total, given="double"))
    assert said in str(check(built_on_a_stub.total, given=names))


def test_a_unit_that_came_after_the_graders_were_loaded_is_said_to_be_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # While a checkout changes, a folder may be missing for a moment: then "there is no unit" is no reason.
    monkeypatch.setattr(registry, "_UNITS", tmp_path)
    assert "There is no unit" in registry.no_such_unit("92_late")
    (tmp_path / "unit_92").mkdir()
    (tmp_path / "unit_90").mkdir()
    assert "There is no unit" in registry.no_such_unit("90_simple")
    assert "just being changed" in registry.no_such_unit("92_late")


def test_a_traceback_names_the_file_where_it_has_no_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of a plain file with several answers none is the name of all the others' lines.
    path = tmp_path / "mine.py"
    broken = sample_unit.SOLVED["double"].replace("return", "raise ValueError;")
    path.write_text(f"{broken}\n\n\n{sample_unit.SOLVED['total']}\n")
    assert commands.check(path, "90_sample", as_json=True) == commands.NOT_ALL_POINTS
    double, _ = json.loads(capsys.readouterr().out)["exercises"]
    assert "in double, <file mine.py>, line 2" in double["criteria"][0]["seen"]
    cells = [new_code_cell("def a(): pass\ndef _b(): pass\ndef c(): pass"), new_code_cell("import os")]
    names = [cell.name for cell in from_notebook(new_notebook(cells=cells), "mine.ipynb").cells]
    assert names == ["<cell of a and c>", "<code cell 2>"]


def test_course_check_gives_the_json_of_the_design(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # One object on stdout; the exit status says whether all points are there.
    path = tmp_path / "mine.ipynb"
    cells = ["print('{}')", sample_unit.SOLVED["double"], "check(double)", sample_unit.STUBS["total"]]
    nbformat.write(notebook(*cells), path)
    assert commands.check(path, as_json=True) == commands.NOT_ALL_POINTS
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["unit", "points", "max_points", "exercises"]
    assert (report["unit"], report["points"], report["max_points"]) == ("90_sample", 3, 5)
    solved, stub = report["exercises"]
    assert list(solved) == ["name", "points", "max_points", "criteria"]
    assert list(solved["criteria"][0]) == ["name", "verdict", "points", "max_points", "seen", "hint"]
    assert {each["verdict"] for each in solved["criteria"]} == {"passed"}
    assert {each["verdict"] for each in stub["criteria"]} == {"not attempted"}
    assert commands.check(path) == commands.NOT_ALL_POINTS
    shown = capsys.readouterr().out
    assert "○ not attempted" in shown
    assert "3/5" in shown
    # For people it counts as their progress, as a check in the notebook does; the stub is no attempt.
    assert [(each["exercise"], each["points"]) for each in read_records()] == [("double", 3)]


def test_course_check_asks_for_an_answer_by_another_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Invariant: a renamed answer is not silently an answer that is not there.
    path = tmp_path / "mine.ipynb"
    renamed = sample_unit.SOLVED["double"].replace("double", "doubled")
    nbformat.write(notebook(renamed, sample_unit.SOLVED["total"]), path)
    assert commands.check(path, "90_sample") == commands.NOT_ALL_POINTS
    assert "There is no double. Is doubled meant to be it?" in capsys.readouterr().out.replace("\n", " ")


def test_what_says_itself_what_is_wrong_has_no_hint_about_something_else() -> None:
    # A slip of the pen gets no advice about ranks, no line of the graders, and after a restart the way out.
    def slip(x: Any) -> Any:
        return y * 2  # type: ignore[name-defined] # noqa: F821

    assert "What is x + x?" not in report_of(slip).text()
    assert "Run All Above Selected Cell" in seen(slip)
    said = seen(lambda: None)
    assert said.startswith("TypeError")
    assert "line" not in said


def test_check_is_quick() -> None:
    # A simulated exercise answers while the student still looks at the cell.
    seconds = []
    for _ in range(9):
        began = time.perf_counter()
        check(total)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.3
