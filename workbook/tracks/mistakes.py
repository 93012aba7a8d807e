"""What students get wrong, by exercise: the reasons of the wrong answers that the graders are proved by."""

import ast
from dataclasses import dataclass
from pathlib import Path

from workbook.unit import summary


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a sentence, and the criterion that finds it."""

    criterion: str
    sentence: str


def mistakes_of(unit: str, root: Path) -> dict[str, list[Mistake]]:
    """Exercise -> a mistake for each criterion, as `tests/wrong_answers` has them; nothing without tests.

    They are read, not imported: the tests are no part of what is installed.
    """
    path = root / "tests" / "wrong_answers" / f"{unit}.py"
    found: dict[str, list[Mistake]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else ():
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") in ("wrong", "instead"):
                exercise = ast.literal_eval(decorator.args[0])
                options = {each.arg: each.value for each in decorator.keywords}
                criterion = ast.literal_eval(options["fails"]) if "fails" in options else ""
                found.setdefault(exercise, []).append(Mistake(str(criterion), summary(node)))
    return {exercise: _one_a_criterion(mistakes) for exercise, mistakes in found.items()}


def _one_a_criterion(mistakes: list[Mistake]) -> list[Mistake]:
    """The first mistake of each criterion: what is usual stands first in the tests."""
    return list({each.criterion: each for each in reversed(mistakes)}.values())[::-1]
