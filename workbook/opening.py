"""What JupyterLab gets when a student opens a notebook: an extension of the Jupyter server.

JupyterLab notes in a notebook which language its kernel speaks, down to Python's version, and calls it
unsaved if anything else stood there. No file in git can have every machine's version: it is filled in here,
and files stay as they are.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from inspect import isawaitable
from pathlib import Path
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import NATIVE_KERNEL_NAME

from graders.student.progress_log import Record, read_records, records_of

INDEX = "index.ipynb"

_LINK = re.compile(
    r"(?:✔ )?(?P<link>\[(?P<unit>\d\d_\w+)\]\((?P=unit)/(?P=unit)\.ipynb\))(?: \(\d+ of \d+ solved\))?"
)
"""A link to a unit in the index, with the mark that it was saved with."""


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Jupyter's own name for what lists a package's extensions."""
    return [{"module": __name__}]


def _load_jupyter_server_extension(app: Any) -> None:
    """Have a Jupyter server hand out notebooks as they are described here."""
    # Wrapped, not replaced: a site may have a contents manager of its own. Some have to be awaited.
    contents = app.contents_manager
    read = contents.get

    def get(*arguments: Any, **options: Any) -> Any:
        model = read(*arguments, **options)
        return _awaited(model) if isawaitable(model) else _opened(model)

    async def _awaited(model: Any) -> Any:
        return _opened(await model)

    def _opened(model: dict[str, Any]) -> dict[str, Any]:
        if model["type"] == "notebook" and model["content"]:
            prepare(model["content"], Path(getattr(contents, "root_dir", "")) / model["path"].lstrip("/"))
        return model

    contents.get = get


def prepare(notebook: dict[str, Any], path: Path) -> None:
    """Fill in the language of this environment's kernel and, in an index, how far each unit is solved.

    path: where the notebook was read; the units that an index links to stand beside it.
    """
    metadata = notebook["metadata"]
    if metadata.get("kernelspec", {}).get("name") == NATIVE_KERNEL_NAME:
        metadata["language_info"] = dict(IPythonKernel.language_info)
    if path.name == INDEX:
        records = list(read_records())
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = marked(cell["source"], path.parent, records)


def marked(text: str, folder: Path, records: Sequence[Record]) -> str:
    """The text with a mark at each link to a unit that has been begun. records: of checks, and any others."""
    begun = {record["unit"] for record in records if record["event"] == "check"}

    def mark(found: re.Match[str]) -> str:
        link, unit = found["link"], found["unit"]
        points = points_of(folder / unit / f"{unit}.ipynb") if unit in begun else {}
        solved = sum(
            any(check["points"] >= points[name] for check in records_of(records, "check", unit, name))
            for name in points
        )
        if not solved:
            return link
        return f"✔ {link}" if solved == len(points) else f"{link} ({solved} of {len(points)} solved)"

    return _LINK.sub(mark, text)


def points_of(notebook: Path) -> Mapping[str, float]:
    """The exercises of a unit's notebook, and what each is worth; none if it cannot be read."""
    # The notebook itself, for a track's has fewer; and the graders would bring PyTorch into the server.
    with suppress(OSError, ValueError, KeyError, TypeError):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        graded = [cell["metadata"].get("nbgrader", {}) for cell in cells]
        return {
            each["grade_id"].removeprefix("check_"): float(each["points"])
            for each in graded
            if each.get("grade")
        }
    return {}
