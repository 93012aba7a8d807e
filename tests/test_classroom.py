"""`course grade`: a whole class, whatever is handed in and whenever it is stopped."""

import csv
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.plugins import CsvExportPlugin

from graders.classroom import grade_class as classroom
from graders.classroom import gradebook, result_store
from graders.classroom.grade_class import Order, State, StudentResult, grade_class
from graders.classroom.gradebook import Course, GradebookWriter
from graders.classroom.pool import GradingFailed, JudgePool, Task
from graders.classroom.preprocessors import WrongCourse
from graders.classroom.result_store import ResultStore
from graders.grading.fingerprint import graders_key
from tests.classroom import (
    UNIT,
    JudgesHere,
    answer_cell,
    blank,
    command,
    environment,
    hand_in,
    new_course,
    run_here,
    solved,
)

# One worker grades the class for all tests.
pytestmark = pytest.mark.xdist_group("class")

ALL, PER_EXERCISE = 21.0, 4
Scores = dict[str, tuple[float, list[float | None]]]


class Nobody:
    """A watcher who does not look."""

    def begin(self, count: int) -> None: ...
    def say(self, sentence: str) -> None: ...
    def end(self, outcome: StudentResult) -> None: ...


def grade(
    root: Path, *students: str, force: bool = False, judges: type = JudgesHere
) -> dict[str, StudentResult]:
    """Grade a class in this process, by default without a process for the judges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classroom, "JudgePool", judges)
        outcomes = grade_class(Course(root), Order(UNIT, students, jobs=1, force=force), Nobody())
    return {outcome.student: outcome for outcome in outcomes}


def scores(root: Path, db_url: str = "") -> Scores:
    """What the gradebook has for each student: in all, and for each check cell."""
    with Gradebook(db_url or f"sqlite:///{root}/gradebook.db", "distributed_training") as gradebook:
        return {
            submission.student_id: (
                submission.score,
                [grade.auto_score for notebook in submission.notebooks for grade in notebook.grades],
            )
            for submission in gradebook.assignment_submissions(UNIT)
        }


def half_solved() -> nbformat.NotebookNode:
    """One exercise is right, one raises, the others are untouched."""
    notebook, right = blank(), solved()
    answer_cell(notebook, "rank_coordinates").source = answer_cell(right, "rank_coordinates").source
    answer_cell(notebook, "pass_the_token").source = "def pass_the_token(token):\n    raise KeyError(token)"
    return notebook


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course with three submissions that nobody has graded."""
    root = new_course(tmp_path_factory.mktemp("pristine") / "course")
    hand_in(root, "right", solved())
    hand_in(root, "half", half_solved())
    hand_in(root, "blank", blank())
    return root


@pytest.fixture
def course(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "course"))


@pytest.fixture(scope="module")
def graded(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, graded by the command; tests/test_attacks.py has it in a process, with judges of its own."""
    root = Path(shutil.copytree(pristine, tmp_path_factory.mktemp("graded") / "course"))
    done = run_here(root, "grade", UNIT)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "right" in line and f"{ALL:g}/{ALL:g}" in line]
    assert "[3/3]" in done.stderr
    return root


def test_gradebook_has_every_score_and_no_null(graded: Path) -> None:
    # Invariant: each submission has a number for each exercise, and the sum is what it earned.
    found = scores(graded)
    assert found["right"][0] == ALL
    assert 0 < found["half"][0] < ALL
    assert found["blank"][0] == 0
    assert all(None not in each and len(each) == PER_EXERCISE for _, each in found.values())


def test_nothing_is_left_behind(graded: Path) -> None:
    # Invariant: no staging folder, no half-written file, no scratch of the markers.
    left = [path.name for path in graded.rglob(".*") if path.name != ".lock"]
    assert not left


def test_autograded_notebook_shows_the_verdicts(graded: Path) -> None:
    # Invariant: the formgrader finds what `nbgrader autograde` would have written.
    path = graded / "autograded" / "half" / UNIT / f"{UNIT}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    tables = [cell.outputs[0]["data"]["text/html"] for cell in notebook.cells if cell.get("outputs")]
    assert len(tables) == PER_EXERCISE
    assert any("KeyError" in table for table in tables)


def test_nbgrader_goes_on_from_here(graded: Path, tmp_path: Path) -> None:
    # Invariant: nbgrader's feedback and export work on what `course grade` wrote.
    root = Path(shutil.copytree(graded, tmp_path / "course"))
    directory = Course(root).directory
    result = NbGraderAPI(directory, config=directory.config).generate_feedback(UNIT, "half")
    assert result["success"], result
    with Gradebook(f"sqlite:///{root}/gradebook.db", "distributed_training") as gradebook:
        CsvExportPlugin(to=str(root / "grades.csv")).export(gradebook)
    assert "KeyError" in (root / "feedback" / "half" / UNIT / f"{UNIT}.html").read_text()
    assert str(ALL) in (root / "grades.csv").read_text()


# ------------------------------------------------------------------------------------ only what has changed


@pytest.fixture
def regraded(graded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(graded, tmp_path / "course", symlinks=True))


def test_what_has_not_changed_is_not_graded_again(regraded: Path) -> None:
    # Invariant: a second run grades nothing and writes nothing.
    before = {path: path.stat().st_mtime_ns for path in regraded.glob("autograded/*/*/*")}
    outcomes = grade(regraded)
    assert {outcome.state for outcome in outcomes.values()} == {State.UNCHANGED}
    assert before == {path: path.stat().st_mtime_ns for path in regraded.glob("autograded/*/*/*")}


def test_a_changed_submission_is_graded_again(regraded: Path) -> None:
    hand_in(regraded, "blank", solved())
    outcomes = grade(regraded)
    assert [student for student, outcome in outcomes.items() if outcome.state is State.GRADED] == ["blank"]
    assert scores(regraded)["blank"][0] == ALL


def test_force_and_student_name_what_is_graded(regraded: Path) -> None:
    outcomes = grade(regraded, "blank", force=True)
    assert {student: outcome.state for student, outcome in outcomes.items()} == {"blank": State.GRADED}


def test_graders_and_library_count(tmp_path: Path) -> None:
    # Invariant: a line more in whatever can change a verdict is another key: the library, the unit's package
    # with the program that its batch scripts start, what drives and judges, the released cells, the sites. A
    # line more in another unit's checks, in a page or in a figure is not.
    counting = (
        *(
            "graders/units/unit_00/amdahl_speedup.py",
            "graders/units/unit_00/batch_probe.py",
            "graders/units/drivers.py",
        ),
        *(
            "graders/grading/run.py",
            "graders/guest/fork_server.py",
            "graders/units/unit_07/released_cells.json",
        ),
        *("course_lib/data.py", "course_lib/runtime/communication/matching.py", "slurm/sites.toml"),
    )
    others = (
        "graders/units/unit_07/ring.py",
        "graders/classroom/pages.py",
        "course_lib/figures/style.py",
        "course_lib/notebook/widgets.py",
    )
    keys = [graders_key.__wrapped__(UNIT, tmp_path)]
    for name in (*counting, *others):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\n")
        keys.append(graders_key.__wrapped__(UNIT, tmp_path))
    assert len(set(keys)) == 1 + len(counting)
    assert set(keys[-len(others) :]) == {keys[len(counting)]}


def test_points_given_by_hand_stay(regraded: Path) -> None:
    # Invariant: regrading keeps what a person gave, and asks them to look again, as nbgrader does.
    with Gradebook(f"sqlite:///{regraded}/gradebook.db", "distributed_training") as gradebook:
        grade_ = gradebook.find_grade("check_rank_coordinates", UNIT, UNIT, "blank")
        grade_.manual_score = 1.5
        gradebook.db.commit()
    grade(regraded, "blank", force=True)
    assert scores(regraded)["blank"][0] == 1.5


def test_a_lost_gradebook_is_written_again_without_grading(pristine: Path, regraded: Path) -> None:
    # Invariant: verdicts outlive the gradebook: they are recorded anew, by a pool that is never called.
    shutil.copyfile(pristine / "gradebook.db", regraded / "gradebook.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JudgesHere, "grade", lambda *_: pytest.fail("it was graded again"))
        outcomes = grade(regraded)
    assert {outcome.state for outcome in outcomes.values()} == {State.GRADED}
    assert scores(regraded)["right"][0] == ALL


def test_late_submissions_lose_what_nbgrader_is_told(course: Path) -> None:
    # Invariant: penalties go through nbgrader's own plugin.
    config = course / "nbgrader_config.py"
    config.write_text(config.read_text() + "\nc.LateSubmissionPlugin.penalty_method = 'zero'\n")
    with Gradebook(f"sqlite:///{course}/gradebook.db", "distributed_training") as gradebook:
        gradebook.update_or_create_assignment(UNIT, duedate="2020-01-01 00:00:00 UTC")
    (course / "submitted" / "right" / UNIT / "timestamp.txt").write_text("2020-01-02 00:00:00 UTC")
    (course / "submitted" / "half" / UNIT / "timestamp.txt").write_text("yesterday\0, I think")
    grade(course, "right", "half")
    with Gradebook(f"sqlite:///{course}/gradebook.db", "distributed_training") as gradebook:
        penalties = {s.student_id: s.late_submission_penalty for s in gradebook.assignment_submissions(UNIT)}
    assert penalties == {"right": ALL, "half": 0}


# ------------------------------------------------------------------------------------ stopped at any moment


def assert_sound(root: Path) -> None:
    """Whatever is there is whole: no score is missing, no student twice, no JSON torn."""
    for total, each in scores(root).values():
        assert None not in each
        assert len(each) == PER_EXERCISE
        assert total >= 0
    for path in root.glob("results/*/*.json"):
        json.loads(path.read_text())
    for path in root.glob("autograded/*/*"):
        nbformat.read(path / f"{UNIT}.ipynb", as_version=4)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


MOMENTS = {
    "before the commit": (gradebook._HeldOpen, "commit_now", property(lambda _: die, lambda *_: None)),
    "before the folder": (gradebook, "_swap", die),
    "before the note": (result_store.ResultStore, "keep_recorded", die),
}


def keep_verdicts(graded: Path, course: Path) -> None:
    """As if the course's submissions had been judged, and nothing recorded."""
    store = ResultStore(Course(course).results(UNIT))
    for each in ResultStore(Course(graded).results(UNIT)):
        store.keep(replace(each, recorded=False))


def kill_while_recording(course: Path, moment: str) -> None:
    """Have a copy of this process record a verdict, and be killed at this moment, as a command might."""
    pid = os.fork()
    if not pid:
        with pytest.MonkeyPatch.context() as patch, suppress(BaseException):
            patch.setattr(*MOMENTS[moment], raising=False)
            grade(course, "right")
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_between_two_writes_it_goes_on(graded: Path, course: Path, moment: str) -> None:
    # Invariant: the worst moments, each hit exactly; verdicts that were kept are not judged again.
    keep_verdicts(graded, course)
    kill_while_recording(course, moment)
    assert_sound(course)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JudgesHere, "grade", lambda *_: pytest.fail("a verdict was lost"))
        assert grade(course, "right")["right"].state is State.GRADED
    assert scores(course)["right"][0] == ALL


def test_control_c_says_that_it_can_go_on(course: Path) -> None:
    # Invariant: status 130, one sentence, no traceback, and no process is left.
    process = subprocess.Popen(
        command("grade", UNIT, "--jobs", "1"),
        cwd=course,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (markers := _children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith("Stopped: ")
    assert "Traceback" not in said
    assert markers
    # Who has lost its parent is waited for by the system, which takes a moment.
    deadline = time.monotonic() + 60
    while left := [pid for pid in markers if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in path.read_text().split()]
    return found


def test_two_at_once_are_refused(course: Path) -> None:
    with classroom._alone(Course(course)), pytest.raises(WrongCourse, match="Somebody is grading"):
        grade(course)


# ----------------------------------------------------------------------------------------- what goes wrong


def test_a_lost_judge_costs_nobody_a_grade(course: Path) -> None:
    # Invariant: a judge that is killed is replaced, and its submission is graded by the next.
    tasks = [Task(str(Course(course).submitted(s, UNIT)), UNIT, s, "key") for s in ("half", "right")]
    with JudgePool(1, course / "scratch") as pool:
        outcomes = []
        for _, future in pool.grade(tasks):
            outcomes.append(future.result())
            for judge in pool._judges:
                judge.kill()
    assert sorted(each.report.points for each in outcomes)[-1] == ALL


def test_whoever_takes_too_long_is_stopped_and_told(course: Path) -> None:
    # Invariant: one submission cannot hold up the class; its verdict says why there are no points.
    task = Task(str(Course(course).submitted("right", UNIT)), UNIT, "right", "key")
    with JudgePool(1, course / "scratch", seconds=0.1) as pool:
        ((_, future),) = pool.grade([task])
    graded = future.result()
    assert graded.report.points == 0
    assert graded.reason.startswith("Grading was stopped after 0.1 s")


def test_a_failure_of_ours_is_no_grade(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Invariant: where grading itself fails, there is a sentence and exit status 1, and no zero.
    def fail(_: object, task: Task, seconds: float) -> None:
        raise GradingFailed("no room on the disk")

    monkeypatch.setattr("graders.classroom.pool._Judge.grade", fail)
    outcomes = grade(course, judges=JudgePool)
    assert {outcome.why for outcome in outcomes.values()} == {"no room on the disk"}
    assert scores(course) == {}


def test_one_that_cannot_be_recorded_does_not_stop_the_next(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = GradebookWriter.record

    def fail_for_half(self: GradebookWriter, graded: result_store.Graded) -> None:
        if graded.student == "half":
            raise OSError("disk full")
        record(self, graded)

    monkeypatch.setattr(GradebookWriter, "record", fail_for_half)
    outcomes = grade(course)
    assert outcomes["half"].why == "The gradebook could not be written: OSError: disk full"
    assert scores(course)["right"][0] == ALL


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["42_nothing"], "There are no graders for 42_nothing."),
        (["01_single_gpu"], "Nothing was handed in for 01_single_gpu"),
        ([UNIT, "--student", "nobody"], f"Nothing was handed in for {UNIT} by nobody."),
        ([UNIT, "--root", "elsewhere"], "There is no nbgrader_config.py"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(
    pristine: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from graders import commands

    root = pristine / "elsewhere" if "elsewhere" in arguments else pristine
    students = arguments[2:] if "--student" in arguments else []
    assert commands.grade(root, Order(arguments[0], tuple(students))) == commands.BAD_INPUT
    assert capsys.readouterr().err.startswith(said)


def test_where_the_gradebook_fails_the_folder_stays(graded: Path, tmp_path: Path) -> None:
    # Invariant: nbgrader's folder never tells of grades that the gradebook does not have.
    root = Path(shutil.copytree(graded, tmp_path / "course"))
    before = (root / "autograded" / "blank" / UNIT / f"{UNIT}.ipynb").read_text()
    hand_in(root, "blank", solved())

    def fail() -> None:
        raise OSError("no room on the disk")

    with pytest.MonkeyPatch.context() as patch:
        held = property(lambda _: fail, lambda *_: None)
        patch.setattr("graders.classroom.gradebook._HeldOpen.commit_now", held, raising=False)
        assert grade(root, "blank")["blank"].state is State.NOT_GRADED
    assert scores(root)["blank"][0] == 0
    assert (root / "autograded" / "blank" / UNIT / f"{UNIT}.ipynb").read_text() == before
    assert grade(root, "blank")["blank"].state is State.GRADED
    assert scores(root)["blank"][0] == ALL
    assert_sound(root)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no second file system here")
def test_the_folder_may_lie_on_another_file_system(graded: Path, tmp_path: Path) -> None:
    # Invariant: a course's folders may be mounted one by one; renaming from one to the other is impossible.
    root = Path(shutil.copytree(graded, tmp_path / "course"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if os.stat(elsewhere).st_dev == root.stat().st_dev:
            pytest.skip("/dev/shm is on the same file system")
        shutil.rmtree(root / "autograded")
        (root / "autograded").symlink_to(elsewhere)
        outcomes = grade(root)
        assert {outcome.state for outcome in outcomes.values()} == {State.GRADED}
        assert_sound(root)


def test_verdicts_of_other_exercises_are_not_on_the_class_page(
    graded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Invariant: when a unit has got an exercise, or another order, verdicts are put beside their like, or not
    # at all, with a sentence; who is graded again is there.
    root = Path(shutil.copytree(graded, tmp_path / "course"))
    results = root / "results" / UNIT
    for student, change in (("half", lambda told: told[:-1]), ("blank", lambda told: told[::-1])):
        plain = json.loads((results / f"{student}.json").read_text())
        plain["report"]["exercises"] = change(plain["report"]["exercises"])
        (results / f"{student}.json").write_text(json.dumps(plain))
    before, after = ResultStore(graded / "results" / UNIT), ResultStore(results)
    assert after.find("blank") == before.find("blank")
    assert after.find("half") is None
    watcher = Nobody()
    said: list[str] = []
    monkeypatch.setattr(watcher, "say", said.append)
    grade_class(Course(root), Order(UNIT, ("right",)), watcher)
    assert "1 submissions were graded when the unit had other exercises" in " ".join(said)
    with (results / "class.csv").open(newline="") as file:
        assert [row["student"] for row in csv.DictReader(file)] == ["blank", "right"]


# ---------------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture
def postgresql(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database on a server of its own, which listens on a Unix socket only."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'psycopg[binary]'")
    programs = [Path(shutil.which("initdb") or ""), *Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    initdb = next((path for path in reversed(programs) if path.is_file()), None)
    if initdb is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    data, sockets = tmp_path / "data", Path(tmp_path / "s")
    sockets.mkdir()
    account = ["setpriv", "--reuid", "postgres", "--clear-groups"] if os.geteuid() == 0 else []
    if account:
        for path in (*tmp_path.parents, tmp_path):
            if path.is_relative_to("/tmp") and path != Path("/tmp"):
                path.chmod(path.stat().st_mode | 0o711)
        data.mkdir()
        shutil.chown(data, "postgres")
        shutil.chown(sockets, "postgres")
    options = ["--auth=trust", "--username=grader", "--no-sync"]
    subprocess.run([*account, initdb, "-D", data, *options], check=True, capture_output=True, cwd=sockets)
    start = [*account, str(initdb.parent / "postgres"), "-D", str(data), "-k", str(sockets), "-h", ""]
    server = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=sockets)
    try:
        while not list(sockets.glob(".s.PGSQL.*[0-9]")):
            assert server.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        yield f"postgresql+psycopg://grader@/postgres?host={sockets}"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def test_postgresql_is_as_good(pristine: Path, graded: Path, postgresql: str, tmp_path: Path) -> None:
    # Invariant: with db_url the same scores stand in PostgreSQL, whole after a kill, and nothing in a file.
    root = Path(shutil.copytree(pristine, tmp_path / "course"))
    config = root / "nbgrader_config.py"
    config.write_text(config.read_text() + f"\nc.CourseDirectory.db_url = {postgresql!r}\n")
    (root / "gradebook.db").unlink()
    assert run_here(root, "release", UNIT).returncode == 0
    keep_verdicts(graded, root)
    kill_while_recording(root, "before the commit")
    assert scores(root, postgresql) == {}
    grade(root)
    found = scores(root, postgresql)
    assert (found["right"][0], found["blank"][0]) == (ALL, 0)
    assert all(None not in each and len(each) == PER_EXERCISE for _, each in found.values())
    assert not (root / "gradebook.db").exists()
