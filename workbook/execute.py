"""Running a solved notebook with papermill, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import nbformat

from course_lib.home import VARIABLE as HOME_VARIABLE
from course_lib.notebook.verdicts import VARIABLE as SOLVED_VARIABLE

CELL_SECONDS = 600
"""How long one cell may take before the unit counts as hung."""

START_SECONDS = 120
"""How long a kernel may take to start: it imports from a file system that others read as well."""


class ExecutionFailed(RuntimeError):
    """A notebook did not run to its end; the message names the cell and the error."""


def execute(notebook: Path, output: Path, parameters: Mapping[str, str | int]) -> None:
    """Run `notebook` with papermill and write what came out to `output`, in whose folder it runs.

    Raises ExecutionFailed.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    command = [*_papermill(notebook.resolve(), output.resolve()), *_options(parameters)]
    done = subprocess.run(
        command,
        env=_environment(output.resolve().parent / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ExecutionFailed(_what_failed(output) or _last_line(done.stderr))


def _papermill(notebook: Path, output: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "workbook.run_notebook", str(notebook), str(output)),
        *("--start-timeout", str(START_SECONDS), "--execution-timeout", str(CELL_SECONDS)),
        *("--cwd", str(output.parent)),
        *("--no-progress-bar", "--kernel", "python3"),
    ]


def _environment(home: Path) -> dict[str, str]:
    """This process's environment, with four differences.

    The notebook finds torchrun though nobody activated anything, and the workbook though PYTHONPATH may name
    it relative to this folder; what it records as progress is not taken for the user's own, and a
    demonstration that fails is an error even if a check saw a mistake before.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    own = {"PATH": path, HOME_VARIABLE: str(home), SOLVED_VARIABLE: "1"}
    if modules := os.environ.get("PYTHONPATH"):
        own["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, modules.split(os.pathsep)))
    return os.environ | own


def _options(parameters: Mapping[str, str | int]) -> Iterator[str]:
    for name, value in parameters.items():
        yield from ("-p", name, str(value))


def _what_failed(output: Path) -> str:
    """The first error in the executed notebook, as a sentence; empty if it has none."""
    if not output.exists():
        return ""
    for cell in nbformat.read(output, as_version=4).cells:
        for error in (o for o in cell.get("outputs", []) if o.output_type == "error"):
            beginning = next((line for line in _code_lines(cell.source)), "")
            return (
                f"the cell that begins with {beginning!r} raised {error.ename}: {error.evalue} "
                f"({output} shows where)"
            )
    return ""


def _code_lines(source: str) -> Iterator[str]:
    """The lines of a cell that say something: no blank ones, no comments."""
    for line in source.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "papermill ended without a word"
