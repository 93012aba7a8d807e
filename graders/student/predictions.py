"""`predict(...)`: guesses, kept before anything is measured and shown beside the measurements."""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from graders.student.progress_log import MEASUREMENT, PREDICTION, Record, Value, read_records, record_value

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = ("Question", "Predicted", "Measured", "How close")

CLOSE = 0.05
"""A prediction is close that is off by no more than this part."""

SMALL = 1.5
"""Below this factor a difference is told as a percentage."""


@dataclass(slots=True)
class Prediction:
    """A question, by the name that the unit gives it; None where nothing was predicted or measured yet."""

    question: str
    predicted: Value | None = None
    measured: Value | None = None

    def takes(self, event: str, value: Value) -> bool:
        """Note a guess or a measurement; False where a guess comes too late: what was measured is known."""
        if event == MEASUREMENT:
            self.measured = value
        elif self.predicted is None or self.measured is None:
            self.predicted = value
        return event == MEASUREMENT or self.predicted == value

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """The row that shows it."""
        words = self.question.replace("_", " ")
        return words, _written(self.predicted), _written(self.measured), self.apart

    @property
    def apart(self) -> str:
        """How far the guess was off, in words; empty where there is nothing to compare."""
        guess, found = self.predicted, self.measured
        if guess is None or found is None:
            return ""
        if isinstance(guess, str) or isinstance(found, str) or guess * found <= 0:
            return "the same" if _written(guess).lower() == _written(found).lower() else ""
        if math.isclose(guess, found, rel_tol=1e-9):
            return "the same"
        if math.isclose(guess, found, rel_tol=CLOSE):
            return "close"
        ratio = guess / found
        if 1 / SMALL < ratio < SMALL:
            return f"{abs(ratio - 1):.0%} too {'much' if ratio > 1 else 'little'}".replace("%", " %")
        return f"{ratio:.3g} times too much" if ratio > 1 else f"{1 / ratio:.3g} times too little"


class Predictions:
    """The predictions of a unit. In a notebook they show themselves as a table, beside what was measured."""

    def __init__(self, unit: str, rows: Iterable[Prediction]) -> None:
        self.unit = unit
        self.rows = {row.question: row for row in rows}

    def ask(self, **guesses: Value | None) -> None:
        """Ask more, in the middle of a unit: `guesses.ask(fastest="ring")`. See `predict`."""
        kept = predictions_of(self.unit, read_records()).rows
        for question, guess in guesses.items():
            self.rows[question] = kept.get(question, Prediction(question))
            if guess is not None:
                self._take(PREDICTION, question, guess)
        if left := [question for question in guesses if self.rows[question].predicted is None]:
            print(f"Write your guess in place of None, then run this cell again: {', '.join(left)}.")

    def measured(self, **values: Value) -> None:
        """Note what was measured, by the names of the questions."""
        for question, value in values.items():
            self._take(MEASUREMENT, question, value)

    def _take(self, event: str, question: str, value: Value) -> None:
        row = self.rows[question]
        before = (row.predicted, row.measured)
        if not row.takes(event, value):
            print(f"{question} has been measured: your first prediction, {_written(row.predicted)}, stays.")
        if (row.predicted, row.measured) != before:
            with suppress(OSError):  # this table has it too
                record_value(event, self.unit, question, value)

    def html(self) -> str:
        """The table as HTML that needs no style sheet."""
        table = "border-collapse:collapse;color:inherit;font-size:inherit;"
        style = "text-align:left;padding:3px 10px;border:1px solid rgba(128,128,128,.45);"
        head = "".join(f'<th scope="col" style="{style}">{text}</th>' for text in HEADINGS)
        rows = (
            "".join(f'<td style="{style}">{escape(text)}</td>' for text in row.texts)
            for row in self.rows.values()
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return (
            f'<table aria-label="predictions" class="mathjax_ignore" style="{table}">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def __rich__(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table(*HEADINGS, title="Predictions", title_justify="left")
        for row in self.rows.values():
            table.add_row(*map(Text, row.texts))
        return table

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        from graders.grading.report import as_text

        return as_text(self)


def predict(unit: str, /, **guesses: Value | None) -> Predictions:
    """Keep your guesses: `guesses = predict("00_hello_ranks", milliseconds_for_a_round=12)`.

    A guess is a number or a text; None stands for one that is still to come. They are kept with your
    progress. The unit's cells tell what was measured with `guesses.measured(...)`; `guesses` shows both. A
    guess that was kept stays as it is once the question has been measured.
    """
    made = Predictions(unit, ())
    made.ask(**guesses)
    return made


def predictions_of(unit: str, records: Iterable[Record]) -> Predictions:
    """What was recorded of a unit's predictions."""
    rows: dict[str, Prediction] = {}
    for record in records:
        if record["unit"] == unit and record["event"] in (PREDICTION, MEASUREMENT):
            question = record["question"]
            rows.setdefault(question, Prediction(question)).takes(record["event"], record["value"])
    return Predictions(unit, rows.values())


def _written(value: Value | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
