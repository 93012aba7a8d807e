"""The simulator's predictions beside published measurements: `python -m benchmarks.published` prints them.

Rows, machines, what went in and where it is from: `course_lib.published`. Unit 12 draws them, and
tests/test_published.py holds the errors. Steps and peaks of one H100 are unit 01's.
"""

import statistics
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks import measure
from course_lib.published import Row, on_h100, predictions


def rows() -> Iterator[measure.Row]:
    """What all predictions take, printed with their errors."""
    start = time.perf_counter()
    predicted = [*predictions(), *on_h100.rows()]
    seconds = time.perf_counter() - start
    show_errors(predicted)
    yield measure.at_most(f"predicting {len(predicted)} published measurements", seconds, 60.0)


def show_errors(predicted: Sequence[Row]) -> None:
    """Print each row with its error, and the median and worst error of each source and of all."""
    table = Table(title="Published and predicted", title_justify="left")
    for heading in ("source", "what", "unit", "published", "predicted", "error", "inferred"):
        table.add_column(heading)
    for row in predicted:
        numbers = (f"{row.measured:.1f}", f"{row.predicted:.1f}", f"{row.error:+.1%}")
        table.add_row(row.source, row.what, row.unit, *numbers, row.inferred)
    Console(width=200).print(table)
    for source in [*dict.fromkeys(row.source for row in predicted), ""]:
        errors = [abs(row.error) for row in predicted if source in row.source]
        print(
            f"{source or 'all'}: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, "
            f"of {len(errors)}"
        )


if __name__ == "__main__":
    show_errors([*predictions(), *on_h100.rows()])
