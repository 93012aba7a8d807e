"""`course student-edition`: what a lecturer publishes, without solutions, tests and second ways."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat

from workbook.errors import CommandFailed
from workbook.release import has_work

FOLDERS = ("course_lib", "graders", "workbook", "notebooks", "examples", "slurm", ".jupyter")
FILES = (
    "pyproject.toml",
    "constraints.txt",
    "environment.yml",
    "apt.txt",
    "Makefile",
    "LICENSE",
    "docs/debugging.md",
    "docs/first_look.svg",
    "docs/running.md",
    "docs/sites.md",
)
SECTIONS = ("A first look", "Units", "For students", "When something goes wrong")
"""Of the README. Its beginning stays as well."""

INSTALL = """## Begin

On Linux or macOS with Python 3.11 or later and make:

    make lab         # JupyterLab on the notebooks

The first call makes `.venv` with pip, which downloads PyTorch and JupyterLab; later ones start at once.
On a machine that has PyTorch already, such as a supercomputer, `make lab SITE=1` builds on it. With conda:
`conda env create -f environment.yml`, activate it, and call `jupyter lab`.

[docs/running.md](docs/running.md) has more: Horovod and others beside, GPUs, batch, clusters.
[docs/debugging.md](docs/debugging.md) brings your own script to ranks.

"""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".ipynb_checkpoints")


def write_student_edition(folder: Path, root: Path) -> Iterator[str]:
    """Write the edition of the workbook in `root`. Yields what is done, as a sentence.

    Raises CommandFailed where something stands already, or the workbook is not whole; and OSError.
    """
    if folder.exists() and any(folder.iterdir()):
        raise CommandFailed([f"{folder} is not empty: name a new folder, or remove what stands there."])
    if missing := [name for name in (*FOLDERS, *FILES, "README.md") if not (root / name).exists()]:
        raise CommandFailed([f"There is no {', '.join(missing)} in {root}: call this in a whole clone."])
    if worked := [path.stem for path in sorted((root / "notebooks").rglob("*.ipynb")) if _has_work(path)]:
        raise CommandFailed(
            [f"These have been worked in: {', '.join(worked)}. Move them away, then call make notebooks."]
        )
    for name in FOLDERS:
        shutil.copytree(root / name, folder / name, ignore=_LEFT_OUT)
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, folder / name)
    readme = (root / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(students_readme(readme), encoding="utf-8")
    yield (
        f"The students' edition: {folder}. It is without solutions, second ways and tests. "
        "make lab opens its notebooks."
    )


def _has_work(path: Path) -> bool:
    return has_work(nbformat.read(path, as_version=4))


def students_readme(text: str) -> str:
    """The README with what students need of it."""
    beginning, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    titles = {section.splitlines()[0].removeprefix("## "): section for section in sections}
    first, *others = (titles[title] for title in SECTIONS)
    return beginning + first + INSTALL + "".join(others)
