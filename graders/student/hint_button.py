"""A button beside a check's table that shows the next hint, where the front end has widgets."""

from html import escape
from typing import Any

from IPython.display import display

from graders.student.display import shows_html
from graders.student.hints import hint_text


def offer_hint(exercise: str) -> None:
    """Show the button in a live notebook. Elsewhere `hint("...")`, which the table names, does the same."""
    if not shows_html():
        return
    import ipywidgets

    button = ipywidgets.Button(description="Hint", tooltip=f"The next hint for {exercise}")
    told = ipywidgets.HTML()
    button.on_click(lambda _: _tell(exercise, told))
    bundle = ipywidgets.VBox([button, told])._repr_mimebundle_()
    # Without widgets nothing is to be seen: the table says what to call.
    display({**bundle, "text/plain": ""}, raw=True)  # type: ignore[no-untyped-call]


def _tell(exercise: str, told: Any) -> None:
    """Add the next hint to those that have been shown."""
    sentence = hint_text(exercise, following="press the button again.", again='hint("{}", 1).')
    told.value += f'<p style="margin:4px 0;white-space:pre-wrap;">{escape(sentence)}</p>'
