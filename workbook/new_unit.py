"""A whole new unit with one small exercise: source, graders' package, and the proofs of its grader."""

import re
from pathlib import Path
from string import Template

from workbook.errors import CommandFailed

TEMPLATES = Path(__file__).parent / "templates" / "unit"

_NAME = re.compile(r"\d\d(_[a-z][a-z0-9]*)+")

_FILES = {
    "source": "solutions/$unit.py",
    "package": "graders/units/unit_$number/__init__.py",
    "grader": "graders/units/unit_$number/$exercise.py",
    "wrong_answers": "tests/wrong_answers/$unit.py",
    "right_answers": "tests/right_answers/$unit.py",
}
"""Template -> the file that it becomes. The build adds the notebook and `released_cells.json`."""


class UnitRefused(CommandFailed):
    """There cannot be a unit of that name; nothing was written."""


def write_unit(name: str, root: Path) -> list[Path]:
    """Write a unit's files into the checkout at `root`; returns them. Raises UnitRefused."""
    _check(name, root)
    words, written = _words(name), []
    for template, target in _FILES.items():
        path = root / Template(target).substitute(words)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template((TEMPLATES / f"{template}.template").read_text()).substitute(words))
        written.append(path)
    return written


def _words(name: str) -> dict[str, str]:
    own = name[3:]
    title = own.replace("_", " ").capitalize()
    return {"unit": name, "number": name[:2], "title": title, "exercise": f"{own}_example"}


def _check(name: str, root: Path) -> None:
    if not _NAME.fullmatch(name):
        raise UnitRefused([f'"{name}" is no unit\'s name; it is two digits and small letters: 14_name.'])
    for there in sorted((root / "solutions").glob(f"{name[:2]}_*.py")):
        taken = f"{name[:2]} is the number of {there.stem}"
        why = "that unit is there already" if there.stem == name else taken
        raise UnitRefused([f"{name} cannot be made: {why}. Give it a number of its own."])
    targets = [Template(target).substitute(_words(name)) for target in _FILES.values()]
    in_the_way = [target for target in targets if (root / target).exists()]
    if in_the_way:
        raise UnitRefused([f"{name} cannot be made: {in_the_way[0]} is there already, left by another unit?"])
