"""nbgrader's whole pipeline with our preprocessors: assign, autograde, formgrader, feedback, export.

The command autogrades, as instructors do; the rest is what it and the formgrader's buttons call.
"""

import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import CsvExportPlugin
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from graders.host.grade_submission import grade_file
from tests import sample_unit
from tests.sample_unit import DOUBLE, SOLVED, STUBS, TOTAL, UNIT

# One worker has nbgrader grade the course for all tests.
pytestmark = pytest.mark.xdist_group("nbgrader")

ROOT = Path(__file__).parents[1]
Notebook = nbformat.NotebookNode
Edit = Callable[[Notebook], None]


def answer_cell(name: str) -> Notebook:
    head, _, body = SOLVED[name].partition("\n")
    docstring = STUBS[name].splitlines()[1]
    source = f"{head}\n{docstring}\n    ### BEGIN SOLUTION\n{body}\n    ### END SOLUTION"
    return new_code_cell(
        source,
        metadata={"exercise": name, "nbgrader": metadata(name, solution=True, grade=False, locked=False)},
    )


def check_cell(name: str, points: float) -> Notebook:
    own = {**metadata(f"check_{name}", solution=False, grade=True, locked=True), "points": points}
    return new_code_cell(f"check({name})", metadata={"nbgrader": own})


def metadata(name: str, **flags: bool) -> dict[str, object]:
    return {"grade_id": name, "schema_version": 3, "task": False, **flags}


def source_notebook() -> Notebook:
    cells = [
        new_markdown_cell("# A sample"),
        new_code_cell("import time\nimport torch.distributed as dist\nfrom graders import check"),
        answer_cell("double"),
        check_cell("double", DOUBLE.points),
        new_code_cell("while True: time.sleep(9)", metadata={"demo": True}),
        answer_cell("total"),
        check_cell("total", TOTAL.points),
    ]
    return new_notebook(cells=cells)


def configuration() -> str:
    """The course's own nbgrader_config.py, for a course with the sample unit in nbgrader's usual folders."""
    return "\n".join(
        [
            (ROOT / "nbgrader_config.py").read_text(),
            "c.CourseDirectory.source_directory, c.CourseDirectory.release_directory = 'source', 'release'",
            f"sys.path.insert(0, {str(ROOT)!r})",
            "from tests import sample_unit",
            "from graders.grading.exercise import REGISTRY",
            "REGISTRY[sample_unit.UNIT] = {e.name: e for e in (sample_unit.DOUBLE, sample_unit.TOTAL)}",
        ]
    )


def nbgrader(course: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=course,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JUPYTER_CONFIG_DIR": str(course / "no-config"), "HOME": str(course)},
    )


def api(course: Path) -> NbGraderAPI:
    """What the formgrader's buttons call, in this process, which has imported everything."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    config.merge(Config({"CourseDirectory": {"root": str(course)}}))
    return NbGraderAPI(CourseDirectory(config=config), config=config)


def submit(course: Path, student: str, edit: Edit) -> Path:
    """Hand in the released notebook after a student has worked on it."""
    notebook = nbformat.read(course / "release" / UNIT / f"{UNIT}.ipynb", as_version=4)
    edit(notebook)
    path = course / "submitted" / student / UNIT / f"{UNIT}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    return path


def cell_of(notebook: Notebook, grade_id: str) -> Notebook:
    found = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id]
    return found[0]


def half_solved(notebook: Notebook) -> None:
    """The first exercise is solved, the second untouched."""
    cell_of(notebook, "double").source = SOLVED["double"]


def partly_right(notebook: Notebook) -> None:
    """The first exercise earns part of its points; the check of the second has been changed."""
    cell_of(notebook, "double").source = "def double(x):\n    return 2.0 * x"
    cell_of(notebook, "total").source = SOLVED["total"]
    cell_of(notebook, "check_total").source = "100"


def muddled(notebook: Notebook) -> None:
    """A check cell is copied, another deleted, an answer cell pasted without its metadata; one cell hangs."""
    half_solved(notebook)
    check = cell_of(notebook, "check_double")
    notebook.cells.append(new_code_cell(check.source, metadata=check.metadata))
    notebook.cells.remove(cell_of(notebook, "check_total"))
    cell_of(notebook, "total").metadata.pop("nbgrader")
    notebook.cells.insert(2, new_code_cell("import os\nos._exit(1)"))


def stripped(notebook: Notebook) -> None:
    """All metadata is gone, as some editors leave it, and so are all checks."""
    half_solved(notebook)
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode()
    notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith(("check(", "while"))]


def emptied(notebook: Notebook) -> None:
    """Nothing is left but a title."""
    notebook.cells = notebook.cells[:1]


STUDENTS: dict[str, tuple[Edit, float]] = {
    "half_solved": (half_solved, 3),
    "partly_right": (partly_right, 4),
    "muddled": (muddled, 3),
    "stripped": (stripped, 3),
    "emptied": (emptied, 0),
}


@pytest.fixture(autouse=True)
def sample() -> Iterator[None]:
    with sample_unit.registered():
        yield


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[None]:
    """nbgrader calls `alembic` by its name, so the environment's programs must be on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def course(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course whose submissions have been graded by `nbgrader autograde`."""
    root = tmp_path_factory.mktemp("course")
    (root / "nbgrader_config.py").write_text(configuration())
    source = root / "source" / UNIT / f"{UNIT}.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(source_notebook(), source)
    assigned = api(root).generate_assignment(UNIT)
    assert assigned["success"], assigned
    for student, (edit, _) in STUDENTS.items():
        submit(root, student, edit)
    graded = nbgrader(root, "autograde", UNIT)
    assert graded.returncode == 0, graded.stderr
    return root


def scores(course: Path, student: str) -> tuple[float, dict[str, float | None]]:
    """What the gradebook has for a student: in all, and for each check cell."""
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        submission = gradebook.find_submission(UNIT, student)
        grades = {grade.cell.name: grade.auto_score for grade in submission.notebooks[0].grades}
        assert not submission.needs_manual_grade
        return submission.score, grades


@pytest.mark.parametrize("student", STUDENTS)
def test_gradebook_has_what_course_check_gives(course: Path, student: str) -> None:
    # The same grader, the same points, by nbgrader's command and by ours; no grade is left open.
    total, grades = scores(course, student)
    assert total == STUDENTS[student][1]
    assert None not in grades.values()
    if student != "emptied":
        report = grade_file(course / "submitted" / student / UNIT / f"{UNIT}.ipynb", UNIT)
        assert grades == {f"check_{r.exercise.name}": r.points for r in report.exercises}


def test_check_cells_hold_the_tables(course: Path) -> None:
    # Whoever opens the autograded notebook sees the verdicts, and that the check cell is the course's own.
    path = course / "autograded" / "partly_right" / UNIT / f"{UNIT}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (output,) = cell_of(notebook, "check_double").outputs
    assert output["output_type"] == "execute_result"
    assert output["data"]["text/plain"] == "2"
    assert "float32[2]; expected int64[2]" in output["data"]["text/html"]
    assert cell_of(notebook, "check_total").source == "check(total)"


@pytest.mark.filterwarnings("ignore:Object of type:sqlalchemy.exc.SAWarning")  # nbgrader's own queries
def test_formgraders_button_grades_the_same_way(course: Path) -> None:
    # The API behind the button, on a submission that has come in since.
    submit(course, "late", partly_right)
    result = api(course).autograde(UNIT, "late")
    assert result["success"], result
    assert scores(course, "late") == scores(course, "partly_right")


def test_feedback_shows_verdicts_and_hints(course: Path) -> None:
    # Students get a page with the same tables as in their own notebook.
    done = api(course).generate_feedback(UNIT, "partly_right")
    assert done["success"], done
    page = (course / "feedback" / "partly_right" / UNIT / f"{UNIT}.html").read_text()
    assert "✘ failed" in page
    assert "Keep the dtype" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//|url\(["']?(https?:)?//""", page), "read offline"


def test_export_has_the_scores(course: Path) -> None:
    # The table for the registrar.
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        CsvExportPlugin(to=str(course / "grades.csv")).export(gradebook)
    with (course / "grades.csv").open() as file:
        rows = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert rows["partly_right"] == 4
    assert rows["emptied"] == 0
    assert set(STUDENTS) <= set(rows)
