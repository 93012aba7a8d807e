"""What stands in the folder that a student handed in, whatever state it is in.

There is always something to grade or a reason, fit for the student, why there is nothing.
"""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from graders.grading.registry import counted
from graders.submissions.read import LARGEST, BadSubmission, Submission, from_cells, read_cells

TIMESTAMP = "timestamp.txt"
"""Where nbgrader keeps when it was handed in."""
_SUFFIXES = (".ipynb", ".py")
_KEPT_METADATA = ("exercise", "demo")
_LARGEST_BESIDE = 10 * 2**20
"""Bytes of a file beside the notebook that is kept for those who grade by hand."""


@dataclass(frozen=True, slots=True)
class HandIn:
    """The file that counts. Without one, `reason` says why; `notes` tell of the rest."""

    unit: str
    path: Path | None = None
    submission: Submission | None = None
    cells: tuple[Any, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = field(default=())

    def notebook(self) -> NotebookNode:
        """A well-formed notebook of its cells, without outputs; without cells, one that gives the reason."""
        if not self.cells:
            said = new_markdown_cell(f"Nothing could be graded. {self.reason}")
            return NotebookNode(new_notebook(cells=[said]))
        return NotebookNode(new_notebook(cells=[_clean(cell) for cell in self.cells]))


def read_hand_in(folder: Path, unit: str) -> HandIn:
    """What a student handed in for a unit. Raises nothing for what stands in the folder."""
    candidates, links = _candidates(folder)
    complaints = [f"{link.name} is a link out of the folder; hand in the file itself." for link in links]
    readable = []
    for path in candidates:
        try:
            readable.append(_read(path, unit))
        except BadSubmission as error:
            # The student knows the file by its name.
            complaints.append(str(error).replace(str(path), path.name))
    if not readable:
        return HandIn(unit, reason=" ".join(complaints) or _nothing_there(folder, unit))
    return _chosen(readable, complaints)


def digest(folder: Path) -> str:
    """A hash of all that was handed in; when it was handed in counts as well, for penalties depend on it."""
    hashed = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            what = str(path.readlink()).encode("utf-8", "surrogateescape")
        elif not path.is_file():
            continue
        elif path.stat().st_size > LARGEST:
            what = f"{path.stat().st_size} {path.stat().st_mtime_ns}".encode()
        else:
            what = hashlib.sha256(path.read_bytes()).digest()
        name = str(path.relative_to(folder)).encode("utf-8", "surrogateescape")
        hashed.update(b"%d %s %d %s" % (len(name), name, len(what), what))
    return hashed.hexdigest()


def copy_beside(folder: Path, target: Path) -> None:
    """Copy the files beside the notebooks: plain ones of a sensible size, nothing that a link leads to."""
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        inside = not any(parent.is_symlink() for parent in (path, *path.parents) if parent != folder)
        if path.suffix == ".ipynb" or relative == Path(TIMESTAMP) or not (inside and path.is_file()):
            continue
        if path.stat().st_size <= _LARGEST_BESIDE:
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / relative)


def _candidates(folder: Path) -> tuple[list[Path], list[Path]]:
    """The notebooks and Python files, and the links among them that lead elsewhere."""
    candidates: list[Path] = []
    links: list[Path] = []
    for path in sorted(_listed(folder)):
        if path.suffix in _SUFFIXES:
            (candidates if path.resolve().is_relative_to(folder.resolve()) else links).append(path)
    return candidates, links


def _listed(folder: Path) -> Iterator[Path]:
    """What stands in the folder itself, but what editors and systems leave behind."""
    return (path for path in folder.iterdir() if not path.name.startswith((".", "__")))


def _read(path: Path, unit: str) -> HandIn:
    cells = tuple(read_cells(path))
    submission = from_cells(cells, path.name, main=path.suffix == ".ipynb")
    if not submission.cells:
        raise BadSubmission(f"{path.name} has no code in it. Was it saved before it was handed in?")
    return HandIn(unit, path, submission, cells)


def _chosen(readable: list[HandIn], complaints: list[str]) -> HandIn:
    """The file with the unit's name, or else the one that answers most of its exercises."""
    unit = readable[0].unit
    named = [each for each in readable if each.path and each.path.name == f"{unit}.ipynb"]
    best = max(_answered(each) for each in readable)
    chosen, *others = named or [each for each in readable if _answered(each) == best]
    if others:
        names = " and ".join(each.path.name for each in (chosen, *others) if each.path)
        return HandIn(
            unit, reason=f"It is not clear which file counts: {names}. Hand in one, named {unit}.ipynb."
        )
    notes = list(complaints)
    ignored = [each.path.name for each in readable if each is not chosen and each.path]
    if not named and chosen.path:
        notes.append(f"{chosen.path.name} was graded; it should be named {unit}.ipynb.")
    if ignored:
        notes.append(f"Not graded, for only one file counts: {', '.join(ignored)}.")
    return HandIn(unit, chosen.path, chosen.submission, chosen.cells, notes=tuple(notes))


def _answered(hand_in: HandIn) -> int:
    return sum(map(hand_in.submission.defines, counted(hand_in.unit))) if hand_in.submission else 0


def _nothing_there(folder: Path, unit: str) -> str:
    found = ", ".join(sorted(path.name for path in _listed(folder) if path.name != TIMESTAMP)) or "nothing"
    return (
        f"There is no notebook in what was handed in: it holds {found[:300]}. "
        f"Hand in {unit}.ipynb itself, not an archive."
    )


def _clean(cell: Any) -> NotebookNode:
    """A cell with its source, and of its metadata only what grading reads, if it is what it should be."""
    metadata = _clean_metadata(cell)
    if cell.cell_type == "code":
        return NotebookNode(new_code_cell(cell.source, metadata=metadata))
    return NotebookNode(new_markdown_cell(cell.source, metadata=metadata))


def _clean_metadata(cell: Any) -> dict[str, Any]:
    kept = {key: cell.metadata[key] for key in _KEPT_METADATA if key in cell.metadata}
    metadata = cell.metadata.get("nbgrader")
    name = metadata.get("grade_id") if isinstance(metadata, dict) else None
    return {**kept, "nbgrader": {"grade_id": name}} if isinstance(name, str) else kept
