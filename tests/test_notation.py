"""One symbol, one meaning: docs/notation.md is held against the formulas of the units."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbook.unit import read_unit

ROOT = Path(__file__).parents[1]
UNITS = [path.stem for path in sorted((ROOT / "solutions").glob("[0-9][0-9]_*.py"))]

CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
SYMBOL = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
OPERATOR = re.compile(
    r"\\(?:t?frac|sum|sqrt|nabla|approx|in|cdot|times|dots|leftarrow|log|ln|[lr](?:ceil|floor)|big|Big|left|right|q?quad)"
    r"(?![A-Za-z])|\\(?:text|mathrm|operatorname)\{[^}]*\}"
)
"""What is no symbol of a quantity."""


def symbols(text: str) -> set[str]:
    """The letters, Latin and Greek, of the formulas of a text."""
    formulas = (display or inline for display, inline in FORMULA.findall(CODE.sub("", text)))
    return {found for each in formulas for found in SYMBOL.findall(OPERATOR.sub(" ", each))}


def used(unit: str) -> set[str]:
    cells = read_unit(ROOT / "solutions" / f"{unit}.py").notebook.cells
    return {s for cell in cells if cell.cell_type == "markdown" for s in symbols(cell.source)}


def rows() -> Iterator[tuple[set[str], list[str]]]:
    """Of each row of the page: its symbols, and the units that have them."""
    for line in (ROOT / "docs" / "notation.md").read_text().splitlines():
        if line.startswith("| $"):
            symbol, _, units = (part.strip() for part in line.strip("|").split("|"))
            # An index is part of the notation, and has a row of its own: m_k is listed as m.
            yield symbols(re.sub(r"_\w", "", symbol)), units.split(", ")


def listed() -> dict[str, list[str]]:
    """Unit number -> its symbols, one for each row that lists it."""
    by_unit = defaultdict(list)
    for names, units in rows():
        for unit in units:
            by_unit[unit] += sorted(names)
    return by_unit


@pytest.mark.parametrize("unit", UNITS)
def test_a_formula_uses_what_is_listed_and_nothing_is_listed_in_vain(unit: str):
    assert set(listed()[unit[:2]]) == used(unit)


@pytest.mark.parametrize("unit", UNITS)
def test_a_symbol_has_one_meaning_in_a_unit(unit: str):
    of_unit = listed()[unit[:2]]
    assert len(of_unit) == len(set(of_unit))


def test_no_unit_is_listed_that_is_not_there():
    assert set(listed()) <= {unit[:2] for unit in UNITS}
