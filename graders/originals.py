"""The answer cells as students first get them, so that a cell can be reset: `graders/stubs/NN_name.json`.

The build writes them from the released notebooks; they hold what those hold, hence no answer.
"""

import json
from pathlib import Path
from typing import Any

import nbformat

DIRECTORY = Path(__file__).parent / "stubs"


def write_originals(notebook: Path) -> Path:
    """Keep the answer cells of a released notebook; returns the file, named after the notebook's unit."""
    cells = nbformat.read(notebook, as_version=4).cells
    kept = {
        cell.metadata["exercise"]: {"source": cell.source, "metadata": cell.metadata, "id": cell.id}
        for cell in cells
        if cell.cell_type == "code" and "exercise" in cell.metadata
    }
    DIRECTORY.mkdir(exist_ok=True)
    path = _file(notebook.stem)
    text = json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def original_cell(unit: str, exercise: str) -> dict[str, Any] | None:
    """The answer cell of an exercise: source, metadata and id. None if it was not kept."""
    try:
        kept = json.loads(_file(unit).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    cell: dict[str, Any] | None = kept.get(exercise)
    return cell


def _file(unit: str) -> Path:
    return DIRECTORY / f"{unit}.json"
