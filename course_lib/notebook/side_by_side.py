"""Two scripts in two columns, line by line, with what differs marked."""

import difflib
import html
from collections.abc import Iterator
from pathlib import Path

from IPython.display import display

_MARK = "▸"
_LEFT = "text-align:left"
_CODE = "display:block;white-space:pre-wrap;overflow-wrap:anywhere;background:transparent"
_BREAK = "(<wbr>"
"""A long line is broken behind a bracket, before it is within a word."""
_HANGING = 6
"""What stands below a line that is too long is indented by so many characters more than that: the mark's, and
four.
"""


def side_by_side(left: Path, right: Path) -> None:
    """Show two text files beside each other; a mark stands before each line that is not in both.

    Where there is no HTML, the difference as `diff -u` writes it.
    """
    old, new = (path.read_text(encoding="utf-8").splitlines() for path in (left, right))
    rows = "".join(_row(*pair) for pair in aligned(old, new))
    table = (
        f'<table style="table-layout:fixed;width:100%" aria-label="{left.name} beside {right.name}">'
        f'<thead><tr><th style="{_LEFT}">{left.name}</th><th style="{_LEFT}">{right.name}</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
    plain = "\n".join(difflib.unified_diff(old, new, left.name, right.name, lineterm=""))
    display({"text/plain": plain, "text/html": table}, raw=True)  # type: ignore[no-untyped-call]


def aligned(old: list[str], new: list[str]) -> Iterator[tuple[str, str, bool]]:
    """(line of old, line of new, whether they differ), with "" where one of them has no line."""
    for tag, first, last, start, end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        for place in range(max(last - first, end - start)):
            one = old[first + place] if first + place < last else ""
            other = new[start + place] if start + place < end else ""
            yield one, other, tag != "equal"


def _row(one: str, other: str, differs: bool) -> str:
    return f"<tr>{_cell(one, differs)}{_cell(other, differs)}</tr>"


def _cell(line: str, differs: bool) -> str:
    mark = _MARK if differs and line.strip() else " "
    weight = "bold" if mark == _MARK else "normal"
    hanging = len(line) - len(line.lstrip()) + _HANGING
    code = html.escape(line).replace("(", _BREAK)
    return (
        f'<td style="{_LEFT};vertical-align:top;padding:0 0.5em"><code style="{_CODE};font-weight:{weight};'
        f'padding-left:{hanging}ch;text-indent:-{hanging}ch">{mark} {code}</code></td>'
    )
