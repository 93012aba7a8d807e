"""The results of an exercise as HTML that needs no style sheet and no script."""

from html import escape

from graders.grading.exercise import Verdict
from graders.grading.run import CriterionResult, ExerciseResult
from graders.grading.words import (
    LOOKS,
    Rows,
    advice_on,
    folded_and_open,
    headline,
    not_judged_lines,
    passed_in_a_line,
    printed_lines,
    shown_hint,
    verdict_words,
)

_CELL = "text-align:left;vertical-align:top;padding:4px 10px;border:1px solid rgba(128,128,128,.45);"
_BOX = (
    "margin:4px 0;white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal;"
    "background:transparent;color:inherit;font-family:var(--jp-code-font-family,monospace);"
)
_BADGE = "display:inline-block;padding:1px 8px;border-radius:9px;white-space:nowrap;color:#000;"

_WRAPPING = "display:inline;white-space:normal;line-height:1.7;-webkit-box-decoration-break:clone;"
"""Of a badge of several lines: as a block it would begin below the triangle that unfolds it."""


def exercise_as_html(result: ExerciseResult) -> str:
    """Points, the rows to look at, the names of those that are not judged and of those that passed (folded),
    advice, what was printed.
    """
    passed, left = folded_and_open(result)
    advice = advice_on(result, 'hint("{}").')
    printed, lines = printed_lines(result), not_judged_lines(result)
    return (
        f'<p style="margin:6px 0 4px;font-weight:bold;">{escape(headline(result))}</p>'
        + (_html_table(left, result.exercise.name) if left else "")
        + "".join(
            f'<p style="margin:4px 0;">{_html_badge(Verdict.NOT_JUDGED, each, _WRAPPING)}</p>'
            for each in lines
        )
        + (_html_passed(passed, result.exercise.name) if passed else "")
        + (f'<p style="margin:4px 0;">{escape(advice)}</p>' if advice else "")
        + (f"Your code printed:{_html_box(chr(10).join(printed))}" if printed else "")
    )


def _html_passed(rows: Rows, name: str) -> str:
    """The rows that passed, folded to their names."""
    said = _html_badge(Verdict.PASSED, passed_in_a_line(rows), _WRAPPING)
    return f'<details style="margin:4px 0;"><summary>{said}</summary>{_html_table(rows, name)}</details>'


def _html_table(rows: Rows, name: str) -> str:
    head = "".join(
        f'<th scope="col" style="{_CELL}">{heading}</th>'
        for heading in ("Criterion", "Verdict", "Points", "What was seen")
    )
    body = "".join(_html_row(each, seen) for each, seen in rows)
    return (
        f'<table aria-label="{escape(name)}" '
        f'style="border-collapse:collapse;margin:6px 0;color:inherit;font-size:inherit;">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _html_badge(verdict: Verdict, words: str, style: str = "") -> str:
    return f'<span style="{_BADGE}{style}background:{LOOKS[verdict].background};">{escape(words)}</span>'


def _html_row(result: CriterionResult, seen: str) -> str:
    badge = _html_badge(result.verdict, verdict_words(result.verdict))
    hint = shown_hint(result)
    story = _html_box(seen) if "\n" in seen else escape(seen)
    said = (
        story
        + result.figure
        + (f'<div style="margin-top:4px;"><b>Hint:</b> {escape(hint)}</div>' if hint else "")
    )
    return (
        f'<tr><th scope="row" style="{_CELL}font-weight:normal;">{escape(result.criterion.name)}</th>'
        f'<td style="{_CELL}">{badge}</td>'
        f'<td style="{_CELL}white-space:nowrap;">{result.points:g} of {result.criterion.points:g}</td>'
        f'<td style="{_CELL}overflow-wrap:anywhere;">{said}</td></tr>'
    )


def _html_box(text: str) -> str:
    return f'<pre style="{_BOX}">{escape(text)}</pre>'


def note_as_html(note: str) -> str:
    """A sentence about the submission as a whole."""
    return _html_box(note) if "\n" in note else f'<p style="margin:4px 0;">{escape(note)}</p>'


def second_way_as_html(source: str) -> str:
    """Another right answer, folded; nothing if there is none."""
    if not source:
        return ""
    return f"<details><summary>A second way to do it</summary>{_html_box(source)}</details>"
