"""What the released notebooks hold, hence no answer: `released_cells.json` of each unit, from the build.

Of each unit the answer cells as students first get them, so that a cell can be reset; and of the cells that
only demonstrate something the sources' hashes, so that they are known in notebooks without metadata too.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[1] / "units"


def write_released_cells(notebook: Path) -> Path:
    """Keep what is needed of a released notebook; returns the file, named after the notebook's unit."""
    import nbformat

    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    kept = {
        "answers": {
            cell.metadata["exercise"]: {"source": cell.source, "metadata": cell.metadata, "id": cell.id}
            for cell in cells
            if "exercise" in cell.metadata
        },
        "demonstrations": [_hash(cell.source) for cell in cells if cell.metadata.get("demo")],
    }
    path = path_of(notebook.stem)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def released_cell(unit: str, exercise: str) -> dict[str, Any] | None:
    """The answer cell of an exercise: source, metadata and id. None if it was not kept."""
    try:
        kept = json.loads(path_of(unit).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    cell: dict[str, Any] | None = kept["answers"].get(exercise)
    return cell


def numbers_with(exercise: str) -> list[str]:
    """The numbers of the units that have an exercise of this name, as far as the build has kept its cell."""
    return [
        path.parent.name.removeprefix("unit_")
        for path in sorted(DIRECTORY.glob("*/released_cells.json"))
        if exercise in json.loads(path.read_text(encoding="utf-8"))["answers"]
    ]


def is_demonstration(source: str) -> bool:
    """Whether a released notebook, of whichever unit, has a demonstration with this source."""
    return _hash(source) in _demonstrations(DIRECTORY)


@cache
def _demonstrations(directory: Path) -> frozenset[str]:
    """Hashes of all units."""
    return frozenset(
        each
        for path in directory.glob("*/released_cells.json")
        for each in json.loads(path.read_text(encoding="utf-8"))["demonstrations"]
    )


def _hash(source: str) -> str:
    return hashlib.sha256(source.strip().encode()).hexdigest()


def path_of(unit: str) -> Path:
    """Where the released cells of a unit are kept."""
    return DIRECTORY / f"unit_{unit[:2]}" / "released_cells.json"
