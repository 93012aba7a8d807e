"""`course start`: a folder to work in for each user of an installation that they cannot write to."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat

from workbook.errors import CommandFailed
from workbook.paths import Places
from workbook.release import has_work

EXCHANGE = "COURSE_EXCHANGE"
"""The environment variable that names the folder in which students hand in."""

CONFIGURATION = '''"""nbgrader's configuration for handing in from here, as `course start` has written it."""

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent

c = get_config()

c.CourseDirectory.course_id = "distributed_training"
c.CourseDirectory.root = str(HERE)
c.Exchange.assignment_dir = str(HERE / "notebooks")
# Where it was when this was written, unless the environment says otherwise; else nbgrader's own place.
if exchange := os.environ.get("{variable}", {exchange!r}):
    c.Exchange.root = exchange
'''


def start(folder: Path, installed: Places) -> Iterator[str]:
    """Copy the notebooks of an installation into a folder, and write how to hand in from there.

    What has been worked in stays. Yields what is done, as sentences. Raises CommandFailed.
    """
    if not installed.index.exists():
        raise CommandFailed(
            [
                f"There are no notebooks in {installed.notebooks}: this installation is without its folder. "
                f"Whoever installs the workbook clones it and installs it from there (make setup, or pip "
                f"install -e .)."
            ]
        )
    try:
        kept = [*_copied(folder, installed)]
        text = CONFIGURATION.format(variable=EXCHANGE, exchange=os.environ.get(EXCHANGE, ""))
        (folder / "nbgrader_config.py").write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(
            [f"{error.filename or folder} cannot be written ({error.strerror}): name a folder of your own."]
        ) from error
    if kept:
        yield f"Kept, since you have worked in them: {', '.join(kept)}."
    yield f"The notebooks are in {folder / 'notebooks'}. Begin with index.ipynb: cd {folder} && jupyter lab"


def _copied(folder: Path, installed: Places) -> Iterator[str]:
    """Copy all notebooks but those that have been worked in, whose names it yields; the index in any case."""
    own = Places(folder)
    for source in sorted(installed.notebooks.rglob("*.ipynb")):
        target = own.notebooks / source.relative_to(installed.notebooks)
        worked_in = target.exists() and has_work(nbformat.read(target, as_version=4))
        if worked_in and source != installed.index:
            yield target.stem
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
