"""A sentence for the student, or a table, shown in a notebook and on a terminal alike."""

from dataclasses import dataclass, field
from html import escape
from typing import Any


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence. `plain` is the plain text that goes with it where something else is expected there."""

    sentence: str
    plain: str = field(default="")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        html = f'<p style="margin:4px 0;white-space:pre-wrap;">{escape(self.sentence)}</p>'
        return {"text/html": html, "text/plain": self.plain or self.sentence}

    def __repr__(self) -> str:
        return self.sentence


def shows_html() -> bool:
    """Whether this is a notebook's kernel, whose frontend shows what a cell returns as HTML."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None
