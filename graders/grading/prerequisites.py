"""Which other exercises an answer is built of, by its source text, and which of them are still stubs."""

import ast
from textwrap import dedent

from graders.grading.answer import Answer
from graders.grading.exercise import REGISTRY, Exercise


def missing(answer: Answer, exercise: Exercise) -> list[str]:
    """The exercises of the unit that the answer uses, itself or by others, and that nobody has written yet.

    Empty where the answer itself is the stub. In the unit's order.
    """
    unit = REGISTRY.get(exercise.unit, {})
    seen: set[str] = set()
    left, stubs = [(exercise.name, answer.source)], set()
    while left:
        name, source = left.pop()
        if name in seen:
            continue
        seen.add(name)
        used, is_stub = _names(source)
        if is_stub and name == exercise.name:
            return []
        if is_stub:
            stubs.add(name)
        left += [(other, answer.source_of(other)) for other in used if other in unit]
    return [name for name in unit if name in stubs]


def names_in(source: str) -> set[str]:
    """Names that a definition uses."""
    return _names(source)[0]


def _names(source: str) -> tuple[set[str], bool]:
    """Names that a definition uses, and whether it raises NotImplementedError, as a stub does."""
    try:
        nodes = list(ast.walk(ast.parse(dedent(source))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), False
    raised = [node.exc for node in nodes if isinstance(node, ast.Raise) and node.exc is not None]
    stub = any(
        isinstance(each, ast.Name) and each.id == "NotImplementedError" for each in map(_called, raised)
    )
    return {node.id for node in nodes if isinstance(node, ast.Name)}, stub


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node
