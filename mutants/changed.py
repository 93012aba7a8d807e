"""Which exercises have changed since a revision: their cell in the solutions, or what grades them."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from graders.grading.registry import exercises
from mutants.making import Solution, solutions_in


class UnknownRevision(Exception):
    """The revision is not in this clone; the message says so."""


def grader_of(solution: Solution) -> Path:
    """The module in which an exercise's grader stands."""
    return Path(str(sys.modules[exercises(solution.unit)[solution.exercise].grade.__module__].__file__))


def changed_since(
    revision: str, solutions: Sequence[Solution], root: Path, grader: Callable[[Solution], Path] = grader_of
) -> list[Solution]:
    """Those whose cell differs from that of `revision`, or whose grader does, or a module of `graders.units`
    that the grader imports. What is not committed yet counts too. Raises UnknownRevision.

    root: the checkout. grader: where an exercise's grader stands, in the checkout.
    """
    if _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") is None:
        raise UnknownRevision(f"{revision} is not in this clone, which may be a shallow one.")
    files = (_git(root, "diff", "--name-only", revision) or "").splitlines()
    changed = {(root / file).resolve() for file in files}
    before: set[str] = set()
    for file in {solution.file for solution in solutions}:
        old = _git(root, "show", f"{revision}:{file.resolve().relative_to(root.resolve())}") or ""
        before |= {each.source for each in solutions_in(file, old)}
    return [
        solution
        for solution in solutions
        if solution.source not in before or changed & _read_by(grader(solution).resolve(), root.resolve())
    ]


def _git(root: Path, *arguments: str) -> str | None:
    """What git says; None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _read_by(module: Path, root: Path) -> set[Path]:
    """A grader's module, and those of `graders.units` that it imports, by whatever way."""
    found, left = set[Path](), [module]
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left += _imported(file, root)
    return found


def _imported(file: Path, root: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("graders.units"):
            package = root / Path(*str(node.module).split("."))
            candidates = [package, *(package / alias.name for alias in node.names)]
            yield from filter(Path.is_file, (path.with_suffix(".py") for path in candidates))
