"""Functions of PyTorch, and of libraries beside the workbook, as answers to its exercises.

They earn all points but those of rows that ask for more. Such a row says in its hint that the library does
not.
"""

import json
import os
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path

from course_lib.beside import interpreter
from tests.field.answers import ANSWERS, FieldAnswer

Told = dict[str, tuple[str, str]]
"""Of each row of an exercise its verdict, and what was seen."""

ROOT = Path(__file__).parents[2]


@cache
def answers() -> tuple[FieldAnswer, ...]:
    """All of them, in the order of the units."""
    for path in sorted(Path(__file__).parent.glob("*_*.py")):
        if path.stem.startswith(("unit_", "beside_")):
            import_module(f"tests.field.{path.stem}")
    return tuple(sorted(ANSWERS, key=lambda each: each.unit))


def told(given: FieldAnswer) -> Told:
    """What the grader says to it, in this process."""
    result = given.graded()
    assert not result.mistake, result.mistake
    return {each.criterion.name: (each.verdict.value, each.seen) for each in result.criteria}


@cache
def told_beside(recipe: str) -> dict[str, Told]:
    """What the graders say to all answers by this library, in its own Python."""
    done = subprocess.run(
        [interpreter(recipe), "-m", "tests.field", "--told", recipe],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Told] = json.loads(done.stdout.splitlines()[-1])
    return found
