"""nbgrader's pipeline, with verdicts from outside the student's process.

`nbgrader autograde` and the formgrader's button run the preprocessors that `nbgrader_config.py` lists:
nbgrader's own, but for `MendCells` in the place of DeduplicateIds and `GradeInSandbox` in that of Execute.
nbgrader's process executes none of the student's code.
"""

from typing import Any

from nbformat import from_dict
from nbformat.v4 import new_code_cell, new_output
from nbgrader.api import Gradebook, MissingEntry, SourceCell
from nbgrader.nbgraderformat import SCHEMA_VERSION
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool

from graders.grading.registry import counted
from graders.grading.report import Report
from graders.grading.run import ExerciseResult, not_attempted
from graders.host.grade_submission import grade_submission
from graders.isolation.backends import UNSANDBOXED, backend_for_grading
from graders.submissions.read import BadSubmission, check_cell_exercise, from_notebook, is_graded_cell

Notebook = Any
"""An `nbformat.NotebookNode`."""
Resources = dict[str, Any]
"""What nbgrader passes from one preprocessor to the next."""


REPORT = "course_report"
"""Where in the resources a `Report` may stand, if the notebook has been graded before."""


class WrongCourse(RuntimeError):
    """The course's own files do not fit together; the message says which."""


class GradeInSandbox(NbGraderPreprocessor):  # type: ignore[misc]
    """Grades the notebook as `course check` does, and writes each verdict as the output of its check cell."""

    unsafe = Bool(False, help="Grade without a sandbox where there is neither bubblewrap nor Apptainer.").tag(
        config=True
    )

    def preprocess(self, nb: Notebook, resources: Resources) -> tuple[Notebook, Resources]:
        """See `nbconvert.preprocessors.Preprocessor`.

        Raises WrongCourse, SandboxFailed, or NoSandbox; nbgrader then says so and records no grade.
        """
        unit = resources["nbgrader"]["notebook"]
        checks = {check_cell_exercise(cell): cell for cell in nb.cells if is_graded_cell(cell)}
        report = resources.get(REPORT) or self._report(nb, unit)
        results = by_name(report)
        notes = tuple(note for note in report.notes if note == UNSANDBOXED)
        for exercise, cell in checks.items():
            if exercise in results:
                _write_outcome(cell, results[exercise], notes)
            elif exercise:
                raise WrongCourse(
                    f"The notebook {unit} checks {exercise}, which has no grader in unit {unit}."
                )
        return nb, resources

    def _report(self, nb: Notebook, unit: str) -> Report:
        """The grades; a notebook without any answer earns nothing."""
        backend_for_grading(self.unsafe)
        submission = from_notebook(nb, f"{unit}.ipynb")
        try:
            report = grade_submission(submission, unit)
        except BadSubmission as error:
            self.log.warning("%s", error)
            nothing = (not_attempted(exercise, str(error)) for exercise in counted(unit).values())
            return Report(unit, tuple(nothing))
        for note in report.notes:
            self.log.warning("%s", note)
        for result in report.exercises:
            if result.mistake:
                self.log.error("The grader of %s stopped:\n%s", result.exercise.name, result.mistake)
        return report


class MendCells(NbGraderPreprocessor):  # type: ignore[misc]
    """Gives every cell nbgrader's metadata from the gradebook, and puts back check cells that are missing.

    Copied, split and pasted cells carry a cell's metadata twice or not at all, and nbgrader then either
    stops or leaves an exercise without a grade.
    """

    def preprocess(self, nb: Notebook, resources: Resources) -> tuple[Notebook, Resources]:
        """See `nbconvert.preprocessors.Preprocessor`."""
        place = resources["nbgrader"]
        with Gradebook(place["db_url"]) as gradebook:
            try:
                known = gradebook.find_notebook(place["notebook"], place["assignment"])
            except MissingEntry:
                return nb, resources
            metadata = {cell.name: _metadata(cell, known) for cell in known.source_cells}
            sources = {cell.name: cell.source for cell in known.source_cells}
        self._keep_last_of_each(nb, metadata)
        present = {_grade_id(cell) for cell in nb.cells}
        for name, own in metadata.items():
            if name not in present and own["grade"] and not own["solution"]:
                self.log.warning("The check cell %s is missing and is put back.", name)
                nb.cells.append(new_code_cell(sources[name], metadata={"nbgrader": own}))
        return nb, resources

    def _keep_last_of_each(self, nb: Notebook, metadata: dict[str, Any]) -> None:
        """Give the last cell of each id the metadata that the gradebook has, and the others none."""
        seen: set[str] = set()
        for cell in reversed(nb.cells):
            name = _grade_id(cell)
            if name and name in seen:
                self.log.warning("There are several cells with the id %s; the last one counts.", name)
            cell.metadata.pop("nbgrader", None)
            if name in metadata and name not in seen:
                cell.metadata["nbgrader"] = metadata[name]
            seen.add(name)


def by_name(report: Report) -> dict[str, ExerciseResult]:
    """The results of a report by the exercises' names."""
    return {result.exercise.name: result for result in report.exercises}


def _grade_id(cell: Notebook) -> str:
    """The id that nbgrader knows the cell by; empty if it has none."""
    metadata = cell.metadata.get("nbgrader")
    name = metadata.get("grade_id") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _metadata(cell: SourceCell, notebook: Any) -> Any:
    """nbgrader's metadata of a cell, as the gradebook has it."""
    points = {graded.name: graded.max_score for graded in notebook.grade_cells}
    tasks = {task.name: task.max_score for task in notebook.task_cells}
    metadata = {
        "grade_id": cell.name,
        "schema_version": SCHEMA_VERSION,
        "grade": cell.name in points,
        "solution": cell.name in {solution.name for solution in notebook.solution_cells},
        "task": cell.name in tasks,
        "locked": cell.locked,
        "checksum": cell.checksum,
        "cell_type": cell.cell_type,
    }
    worth = {**points, **tasks}.get(cell.name)
    return from_dict(metadata if worth is None else {**metadata, "points": worth})


def _write_outcome(cell: Notebook, result: ExerciseResult, notes: tuple[str, ...]) -> None:
    """Make the verdict the output of a check cell; nbgrader takes the points from its plain text.

    Raises WrongCourse if cell and grader do not agree on what the exercise is worth.
    """
    name, points = result.exercise.name, float(cell.metadata["nbgrader"]["points"])
    if points != result.exercise.points:
        raise WrongCourse(
            f"{name} is worth {points:g} points in the notebook, {result.exercise.points:g} in its grader. "
            f"Build and release the unit again."
        )
    shown = Report(result.exercise.unit, (result,), notes)._repr_mimebundle_()
    cell.execution_count = 1
    cell.outputs = [new_output("execute_result", shown, execution_count=1)]
