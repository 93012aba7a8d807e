"""A unit with some of its sections and exercises; what these need of the rest is given."""

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import nbformat.v4
from nbformat import NotebookNode

from workbook.errors import CommandFailed
from workbook.pages import without_markers
from workbook.tracks.statements import Statement, definitions, statements_of
from workbook.unit import Unit

_HEADING = re.compile(r"^## (?:(\d+) )?(.+)$", re.MULTILINE)
_ITEM = re.compile(r"^\d+\. ", re.MULTILINE)
_MEASURED = re.compile(r"\b[Ss]ection (\d+)")
FOLDED = {"source_hidden": True}


@dataclass(slots=True)
class _Cell:
    """A cell, the section that it stands in, and whether it stays."""

    node: NotebookNode
    section: str
    stays: bool
    statements: tuple[Statement, ...]


def sections_of(unit: Unit) -> list[str]:
    """The unit's sections: a number, or the heading where it has none; from the first number on."""
    return list(dict.fromkeys(filter(None, (section for _, section in in_sections(unit.notebook.cells)))))


def cut(unit: Unit, sections: Collection[str], exercises: Collection[str]) -> Unit:
    """The unit with its beginning, these sections, and of their exercises these; the others are given.

    What a cell that stays needs of the sections left out stands before it, folded: definitions, and the
    references of exercises. Raises CommandFailed for sections and exercises that the unit does not have.
    """
    if unknown := [each for each in sections if each not in sections_of(unit)]:
        raise CommandFailed(
            [f"{unit.name} has no section {', '.join(unknown)}. It has: {', '.join(sections_of(unit))}."]
        )
    cells = [
        _Cell(
            node,
            section,
            not section or section in sections,
            tuple(statements_of(node)) if node.cell_type == "code" else (),
        )
        for node, section in in_sections(unit.notebook.cells)
    ]
    there = {cell.node.metadata.get("exercise") for cell in cells if cell.stays}
    if unknown := [each for each in exercises if each not in there]:
        raise CommandFailed([f"The sections chosen of {unit.name} have no exercise {', '.join(unknown)}."])
    kept = _without_predictions([*_kept(cells, exercises)], sections)
    kept[0] = _told(kept[0], unit, sections)
    notebook = NotebookNode({**unit.notebook, "cells": kept})
    answers = tuple(answer for answer in unit.answers if answer.name in exercises)
    return replace(unit, notebook=notebook, answers=answers)


def in_sections(cells: Sequence[NotebookNode]) -> Iterator[tuple[NotebookNode, str]]:
    """Each cell with its section, which is empty before section 1. A cell with headings is cut at each."""
    section = ""
    for cell in cells:
        starts = (
            [each.start() for each in _HEADING.finditer(cell.source)] if cell.cell_type == "markdown" else []
        )
        for start, end in pairwise([*([] if 0 in starts else [0]), *starts, len(cell.source)]):
            text = cell.source[start:end].rstrip("\n") if starts else cell.source
            if starts and (heading := _HEADING.match(text)):
                section = heading[1] or (heading[2] if section else "")
            yield NotebookNode({**cell, "source": text}), section


def _kept(cells: Sequence[_Cell], exercises: Collection[str]) -> Iterator[NotebookNode]:
    """The cells that stay, and before them what they need of those that do not."""
    needed = _needed(cells)
    given: list[str] = []
    for number, cell in enumerate(cells):
        name = cell.node.metadata.get("exercise")
        if not cell.stays:
            sources = [cell.statements[position].source for position in sorted(needed.get(number, ()))]
            given += [reference(cell.node)] if sources and name else sources
            continue
        if given and cell.node.cell_type == "code":
            yield _given_cell(given)
            given = []
        if name is None or name in exercises:
            yield cell.node
        else:
            yield _given_note(name)
            yield _given_cell([reference(cell.node)])


def _needed(cells: Sequence[_Cell]) -> dict[int, list[int]]:
    """The statements of cells that go which cells that stay need: the cell's number -> their places there.

    From the end to the beginning: what is wanted at a statement is taken from the last that defines it.
    """
    defined = definitions(statement for cell in cells for statement in cell.statements)
    needed: dict[int, list[int]] = {}
    wanted: set[str] = set()
    for number, cell in reversed(list(enumerate(cells))):
        for position, statement in reversed(list(enumerate(cell.statements))):
            if not cell.stays and not statement.defines & wanted:
                continue
            if not cell.stays:
                needed.setdefault(number, []).append(position)
            wanted -= statement.defines
            wanted |= _with_what_they_call(statement.uses, defined)
    return needed


def _with_what_they_call(names: Collection[str], defined: dict[str, frozenset[str]]) -> set[str]:
    """The names, and what the definitions behind them use: a function looks it up only when it is called."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += defined.get(name, ())
    return found


def reference(cell: NotebookNode) -> str:
    """What an exercise's cell holds, without the marks of the solution."""
    return without_markers(cell.source).strip("\n")


def _given_cell(sources: Sequence[str]) -> NotebookNode:
    text = "# Given: what is left out here, and what the cells below need of it.\n\n" + "\n\n\n".join(sources)
    cell: NotebookNode = nbformat.v4.new_code_cell(text, metadata={"jupyter": FOLDED})
    return cell


def _given_note(name: str) -> NotebookNode:
    cell: NotebookNode = nbformat.v4.new_markdown_cell(
        f"*`{name}` is given here, folded in the next cell. Writing it is an exercise of the whole unit.*"
    )
    return cell


def _told(title: NotebookNode, unit: Unit, sections: Collection[str]) -> NotebookNode:
    """The first cell with a line that says what is left out."""
    out = [int(each) for each in sections_of(unit) if each not in sections and each.isdigit()]
    if not out:
        return title
    plural = "s" if len(out) > 1 else ""
    note = (
        f"*Left out here: section{plural} {_in_ranges(out)}. The whole unit has what the text says of them.*"
    )
    return NotebookNode({**title, "source": f"{title.source}\n\n{note}"})


def _in_ranges(numbers: Sequence[int]) -> str:
    """`1, 3–5` for 1, 3, 4, 5."""
    starts = [each for each in numbers if each - 1 not in numbers]
    ends = [each for each in numbers if each + 1 not in numbers]
    return ", ".join(
        str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}"
        for a, b in zip(starts, ends, strict=True)
    )


def _without_predictions(cells: Sequence[NotebookNode], sections: Collection[str]) -> list[NotebookNode]:
    """The cells without predictions of what is not measured there, neither asked nor kept."""
    position = next((n for n, cell in enumerate(cells) if "= predict(" in cell.source), None)
    if position is None:
        return list(cells)
    question, guess = cells[position - 1], cells[position]
    unit, names = _asked_in(guess.source)
    others = "\n".join(cell.source for cell in cells[position + 1 :] if cell.cell_type == "code")
    stay = [bool(re.search(rf"\b{name}=", others)) for name in names]
    if all(stay):
        return list(cells)
    if not any(stay):
        return [*cells[: position - 1], *cells[position + 1 :]]
    head, items = questions_in(question.source)
    if len(items) == len(names):
        kept = [item for item, stays in zip(items, stay, strict=True) if stays]
    else:  # Some ask for two numbers; each says where these are measured.
        kept = [item for item in items if {*sections} & {*_MEASURED.findall(item)}]
    head += "".join(f"{number}. {item.rstrip()}\n" for number, item in enumerate(kept, start=1))
    question = NotebookNode({**question, "source": head.rstrip("\n")})
    lines = "".join(f"    {name}=None,\n" for name, stays in zip(names, stay, strict=True) if stays)
    guess = NotebookNode({**guess, "source": f'guesses = predict(\n    "{unit}",\n{lines})'})
    return [*cells[: position - 1], question, guess, *cells[position + 1 :]]


def questions_in(source: str) -> tuple[str, list[str]]:
    """What stands before the questions that a unit asks before it measures, and each without its number."""
    before, mark, asked = source.rpartition("**Predict")
    head, *items = _ITEM.split(asked)
    return before + mark + head, items


def _asked_in(source: str) -> tuple[str, list[str]]:
    """The unit and the names of the questions in a cell `guesses = predict("NN_name", name=None, ...)`."""
    call = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return ast.literal_eval(call.args[0]), [str(each.arg) for each in call.keywords]
