"""Medians of repeated calls, and rows that set two of them side by side."""

import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

RESULTS = Path("build/benchmarks.json")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: ours, the other's if there is one, in seconds or in bytes, and what it should be."""

    what: str
    ours: float
    other: float | None
    other_name: str
    aim: str
    reached: bool
    unit: Literal["s", "B"] = "s"

    @property
    def ratio(self) -> float | None:
        """How many times longer, or larger, the other is."""
        return None if self.other is None else self.other / self.ours


def median_seconds(call: Callable[[], object], runs: int, warm_up: int = 1) -> float:
    """Median wall time of `runs` calls, in seconds, after `warm_up` calls that do not count."""
    for _ in range(warm_up):
        call()
    times = []
    for _ in tqdm(range(runs), leave=False, disable=None, unit="run"):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def times_faster(what: str, ours: float, other: float, other_name: str, at_least: float) -> Row:
    """A row that says how many times faster ours is."""
    return Row(what, ours, other, other_name, f"at least {at_least:g} times faster", other / ours >= at_least)


def at_most(what: str, ours: float, seconds: float) -> Row:
    """A row that holds a time against a limit."""
    return Row(what, ours, None, "", f"at most {seconds:g} s", ours <= seconds)


def show(rows: Iterable[Row], title: str = "Medians of one run on this machine") -> None:
    """Print the rows as a table, and add them to build/benchmarks.json: the newest of each `what`."""
    rows = list(rows)
    table = Table(title=title, title_justify="left")
    for heading in ("what", "ours", "instead", "ratio", "aim", "reached"):
        table.add_column(heading)
    for row in rows:
        written = _seconds if row.unit == "s" else _bytes
        instead = "" if row.other is None else f"{written(row.other)} {row.other_name}"
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        table.add_row(row.what, written(row.ours), instead, ratio, row.aim, "yes" if row.reached else "no")
    Console().print(table)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    by_name = {row["what"]: row for row in [*kept, *map(asdict, rows)]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(list(by_name.values()), indent=1) + "\n")


def _seconds(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _bytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB"
