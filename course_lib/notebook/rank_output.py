"""What ranks print and answer, shown rank by rank; in a notebook also while a cell still runs."""

import contextvars
import html
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from IPython.display import display

from course_lib.figures.style import rank_colour
from course_lib.launch.failures import LaunchError
from course_lib.notebook.display_target import DisplayTarget, display_target
from course_lib.notebook.staying_engine import RankAnswer
from course_lib.runtime.communication.wording import ranks_in_words

_MOST_APART = 8
TOGETHER = 0
"""How many ranks are shown apart where those with the same output always are shown together."""
_LOOK_SECONDS = 0.25
"""How often what is shown is renewed."""


class RankOutput:
    """An output of a cell with each rank's text under its number, which can be replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, outputs: Mapping[int, RankAnswer], most_apart: int = _MOST_APART) -> None:
        """Show this in place of what was shown; nothing at all if no rank has any.

        most_apart: of more ranks those with the same output are shown together.
        """
        if all(not output.printed.strip() and output.value is None for output in outputs.values()):
            return
        data = _bundle(_groups(outputs, most_apart))
        if self._handle is not None:
            self._handle.update(data, raw=True)
            return
        self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]


@contextmanager
def shown_as_it_comes(printed: Callable[[], Mapping[int, str]]) -> Iterator[RankOutput]:
    """Show what the ranks print while the block runs, and also when it fails.

    printed: what each has printed so far. Only a notebook's output can be replaced: elsewhere all is shown at
    the end.
    """
    output, over = RankOutput(), threading.Event()

    def show(most_apart: int = _MOST_APART) -> None:
        output.show({rank: RankAnswer(text, None) for rank, text in printed().items()}, most_apart)

    def follow() -> None:
        shown: Mapping[int, str] = {}
        while not over.wait(_LOOK_SECONDS):
            if printed() != shown:
                shown = printed()
                show()

    # The context says to which cell an output belongs.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(follow,), daemon=True)
    if display_target() in (DisplayTarget.LIVE_NOTEBOOK, DisplayTarget.BATCH_NOTEBOOK):
        thread.start()
    try:
        yield output
    except (LaunchError, KeyboardInterrupt):
        _join(thread, over)
        show(TOGETHER)
        raise
    finally:
        _join(thread, over)


def _join(thread: threading.Thread, over: threading.Event) -> None:
    over.set()
    if thread.ident is not None:
        thread.join()


def _bundle(groups: Sequence[tuple[RankAnswer, list[int]]]) -> dict[str, str]:
    """As text, and as a table with a colour a rank."""
    plain = "\n".join(
        f"{ranks_in_words(ranks)}:\n" + "\n".join(f"    {line}" for line in output.text.splitlines())
        for output, ranks in groups
    )
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left;vertical-align:top;white-space:nowrap;'
        f'border-left:6px solid {rank_colour(ranks[0])}">{ranks_in_words(ranks)}</th>'
        f'<td style="text-align:left">'
        f'<pre style="margin:0;background:transparent;font-family:var(--jp-code-font-family,monospace)">'
        f"{html.escape(output.text)}</pre></td></tr>"
        for output, ranks in groups
    )
    table = f'<table aria-label="output of each rank"><tbody>{rows}</tbody></table>'
    return {"text/plain": plain, "text/html": table}


def _groups(outputs: Mapping[int, RankAnswer], most_apart: int) -> list[tuple[RankAnswer, list[int]]]:
    """Outputs with the ranks that have them, in the order of the lowest rank."""
    if len(outputs) <= most_apart:
        return [(output, [rank]) for rank, output in outputs.items()]
    groups: dict[RankAnswer, list[int]] = {}
    for rank, output in outputs.items():
        groups.setdefault(output, []).append(rank)
    return list(groups.items())
