"""Beginning an answer anew: `reset("average_gradients")` in its cell, or `course reset FILE EXERCISE`."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graders.student.display import Notice, shown, shows_html
from graders.student.lookup import NoSuchExercise, find_exercise, named_exercise, session_notebook

if TYPE_CHECKING:
    from graders.grading.exercise import Exercise


class CannotReset(Exception):
    """The cell cannot be reset; the message says what to do."""


def reset(exercise: object = None) -> Notice:
    """Put the original of an answer back: write `reset("average_gradients")` in its cell and run that.

    The cell in which it runs is replaced, whatever else stands in it.
    """
    try:
        found = named_exercise(exercise, "reset")
        source = _original(found)["source"]
    except (NoSuchExercise, CannotReset) as error:
        return shown(Notice(str(error)))
    if not shows_html():
        return shown(
            Notice(f"Outside of a notebook, reset the cell in its file: course reset FILE {found.name}")
        )
    replace_this_cell(source)
    return Notice(f"This cell is the original of {found.name} again.{_told_duplicates(found.name)}")


def replace_this_cell(source: str) -> None:
    """Ask the notebook to put this source in the place of the cell that is running."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.set_next_input(source, replace=True)


def reset_in_file(path: Path, exercise: str) -> str:
    """Put the original of an answer back into a notebook file; returns what was done, in a sentence.

    The notebook as it was is kept beside it. Raises CannotReset or NoSuchExercise.
    """
    import nbformat

    from graders.submissions.read import BadSubmission, read_notebook

    try:
        notebook = read_notebook(path)
    except BadSubmission as error:
        raise CannotReset(str(error)) from error
    original = _original(find_exercise(exercise, _unit_of(path, exercise)))
    cells = answer_cells(notebook, exercise)
    if not cells:
        raise CannotReset(
            f"{path} has no cell for {exercise}. Take the cell from a fresh copy of the notebook, "
            f"and put it before check({exercise})."
        )
    # The last one counts, in nbgrader as in a kernel that runs the cells in order.
    notebook.cells[cells[-1]].update(source=original["source"], outputs=[], execution_count=None)
    notebook.cells[cells[-1]].metadata.update(original["metadata"])
    backup = _backup_name(path)
    shutil.copy2(path, backup)
    nbformat.write(notebook, path)
    others = duplicates_in_words(cells, exercise) if len(cells) > 1 else ""
    return f"{exercise} in {path} is the original again. The notebook as it was: {backup}.{others}"


def answer_cells(notebook: Any, exercise: str) -> list[int]:
    """The positions of the code cells that are, or define, the answer to an exercise."""
    from graders.submissions.cells import Cell

    return [
        position
        for position, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
        and (cell.metadata.get("exercise") == exercise or exercise in Cell("", cell.source).definitions)
    ]


def duplicates_in_words(cells: list[int], exercise: str) -> str:
    """A sentence about an answer that stands in several cells."""
    numbers = " and ".join(str(position + 1) for position in cells)
    return (
        f"\nThe notebook has {len(cells)} cells for {exercise}: number {numbers}, counted from the top. "
        f"The last one counts; delete the others."
    )


def _told_duplicates(exercise: str) -> str:
    """What is to be said of duplicates in the notebook of this kernel, as it was last saved."""
    path = session_notebook()
    if path is None:
        return ""
    from graders.submissions.read import BadSubmission, read_notebook

    with suppress(BadSubmission):
        cells = answer_cells(read_notebook(path), exercise)
        # The cell that runs `reset` may be an extra one, which is about to become a second answer.
        if len(cells) > 1:
            return duplicates_in_words(cells, exercise)
    return ""


def _original(exercise: "Exercise") -> dict[str, Any]:
    """The kept cell of an exercise. Raises CannotReset."""
    from graders.submissions.released_cells import released_cell

    cell = released_cell(exercise.unit, exercise.name)
    if cell is None:
        raise CannotReset(
            f"The original of {exercise.name} is not installed here. "
            f"Take the cell from a fresh copy of the notebook {exercise.unit}.ipynb."
        )
    return cell


def _unit_of(path: Path, exercise: str) -> str | None:
    """The unit that a notebook is named after, if that has the exercise."""
    from graders.grading.registry import exercises

    return path.stem if exercise in exercises(path.stem) else None


def _backup_name(path: Path) -> Path:
    """A name beside the notebook that is not taken."""
    number = 1
    while (backup := path.with_name(f"{path.stem}.before-reset-{number}{path.suffix}")).exists():
        number += 1
    return backup
