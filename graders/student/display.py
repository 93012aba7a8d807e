"""A sentence for the student, or a table, shown in a notebook and on a terminal alike."""

import os
import sys
import textwrap
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.text import Text

Shown = TypeVar("Shown")

VALIDATOR_COLUMNS = 80
"""`nbgrader validate` cuts longer lines."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence. `plain` is the plain text that goes with it where something else is expected there."""

    sentence: str
    plain: str = field(default="")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        html = f'<p style="margin:4px 0;white-space:pre-wrap;">{escape(self.sentence)}</p>'
        return {"text/html": html, "text/plain": self.plain or self.sentence}

    def __rich__(self) -> "Text":
        from rich.text import Text

        return Text(self.sentence)

    def __repr__(self) -> str:
        return self.sentence


def shown(value: Shown) -> Shown:
    """Return what is to be shown. In a notebook a cell's last value shows itself; elsewhere it is printed."""
    if not shows_html():
        from rich.console import Console

        Console().print(value)
    return value


def tell_validator(sentence: str) -> None:
    """Say why a check earned less than all points, if nbgrader's Validate asks.

    It quotes what is on stderr, and in its place says "Partial credit", of an untouched exercise as well.
    """
    if os.environ.get("NBGRADER_VALIDATING") == "1":
        print(textwrap.fill(sentence, VALIDATOR_COLUMNS), file=sys.stderr)


def shows_html() -> bool:
    """Whether this is a notebook's kernel, whose frontend shows what a cell returns as HTML."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None
