"""Pages that need no network: one a submission for the student, one of the class for the instructor."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean, median

from graders.classroom.result_store import Graded, write_whole
from graders.grading.exercise import Criterion, Exercise, Verdict
from graders.grading.report import LOOKS, earned
from graders.grading.run import CriterionResult, ExerciseResult
from graders.grading.text import shortened
from graders.isolation.backends import UNSANDBOXED

SEEN_SHOWN = 240
"""Characters of a wrong answer's message that the class page quotes."""
SLOWEST = 5

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; }
.class th, .class td { border: 1px solid rgba(128,128,128,.45); padding: 4px 10px; text-align: left;
  vertical-align: top; overflow-wrap: break-word; }
.class td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.bar { display: flex; width: 16rem; height: 1.4rem; border: 1px solid rgba(128,128,128,.6); }
.bar span { overflow: hidden; color: #000; text-align: center; font-size: .85rem; }
.legend span { display: inline-block; padding: 0 8px; margin-right: 8px; border-radius: 9px; color: #000; }
.notice { border-left: 4px solid #d55e00; padding-left: 0.8rem; }
"""


# ------------------------------------------------------------------------------------------- for a student


def student_page(graded: Graded) -> str:
    """Each criterion, what was seen and the hint, as in the student's own notebook."""
    report = graded.report
    title = f"{report.unit}: {earned(report.points, report.max_points)}"
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(graded.student)}{_file(graded)}</p>"]
    if graded.reason:
        parts.append(f'<p class="notice"><b>Nothing could be graded.</b> {escape(graded.reason)}</p>')
    else:
        parts.append(report.html())
    return _page(title, parts)


def _file(graded: Graded) -> str:
    return f", from <code>{escape(graded.file)}</code>" if graded.file else ""


# ------------------------------------------------------------------------------------------ for the class


@dataclass(frozen=True, slots=True)
class Miss:
    """A criterion that some missed, how many, and what was seen most often when they did."""

    criterion: Criterion
    failed: int
    blocked: int
    seen: str
    seen_count: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How a class did at one exercise: how many solved it, have part of it, failed it, did not try."""

    exercise: Exercise
    solved: int
    partly: int
    failed: int
    untouched: int
    mean: float
    misses: tuple[Miss, ...]
    """Most missed first."""

    @property
    def blocked(self) -> int:
        """Verdicts that were not given, for something before them failed."""
        return sum(miss.blocked for miss in self.misses)


def standings(class_: Sequence[Graded]) -> list[Standing]:
    """A standing an exercise, in the unit's order; empty for an empty class."""
    if not class_:
        return []
    by_exercise = zip(*(graded.report.exercises for graded in class_), strict=True)
    return [_standing(results) for results in by_exercise]


def _standing(results: Sequence[ExerciseResult]) -> Standing:
    exercise = results[0].exercise
    solved = sum(result.passed for result in results)
    untouched = sum(not result.attempted for result in results)
    partly = sum(result.attempted and not result.passed and result.points > 0 for result in results)
    failed = len(results) - solved - untouched - partly
    mean = sum(result.points for result in results) / len(results)
    by_criterion = zip(*(result.criteria for result in results), strict=True)
    misses = [miss for miss in map(_miss, by_criterion) if miss.failed or miss.blocked]
    misses.sort(key=lambda miss: (miss.failed, miss.blocked), reverse=True)
    return Standing(exercise, solved, partly, failed, untouched, mean, tuple(misses))


def _miss(results: Sequence[CriterionResult]) -> Miss:
    said = [_first_lines(each.seen) for each in results if each.verdict is Verdict.FAILED]
    blocked = sum(each.verdict is Verdict.BLOCKED for each in results)
    kinds = [_without_numbers(text) for text in said]
    ((kind, count),) = Counter(kinds).most_common(1) or [("", 0)]
    seen = said[kinds.index(kind)] if said else ""
    return Miss(results[0].criterion, len(said), blocked, shortened(seen, SEEN_SHOWN), count)


def _first_lines(seen: str) -> str:
    """A message's first two lines, without those that are places in one student's code."""
    lines = [line for line in seen.splitlines() if line.strip() and not line[0].isspace()]
    return " ".join(lines[:2])


def _without_numbers(text: str) -> str:
    """What messages about the same mistake have in common, whatever inputs were drawn."""
    return _NUMBERS.sub("0", text)


_NUMBERS = re.compile(r"-?\d[\d.]*(e[-+]?\d+)?(, -?\d[\d.]*(e[-+]?\d+)?)*")
"""One, or several in a row."""


def class_page(unit: str, class_: Sequence[Graded]) -> str:
    """How the class did at each exercise, what was missed most, who took longest, who needs help."""
    found = standings(class_)
    title = f"{unit}: {len(class_)} submission{'' if len(class_) == 1 else 's'}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _summary(class_),
        "<h2>Exercises</h2>",
        _legend(),
        _table(
            ("Exercise", "Mean points", "Distribution", "Blocked verdicts"), map(_exercise_row, found), (1, 3)
        ),
        "<h2>What was missed most</h2>",
        _table(
            ("Exercise", "Criterion", "Failed", "Blocked", "Seen most often", "So often"),
            _miss_rows(found),
            (2, 3, 5),
        ),
        "<h2>Nothing could be graded</h2>",
        _table(("Student", "Why"), ((m.student, m.reason) for m in class_ if m.reason)),
        "<h2>Slowest</h2>",
        _table(("Student", "Seconds"), ((m.student, f"{m.seconds:.1f}") for m in _slowest(class_)), (1,)),
    ]
    return _page(title, parts)


def class_csv(class_: Sequence[Graded]) -> str:
    """A row a submission: points of each exercise, the first criterion missed, seconds, sandbox, reason."""
    names = [result.exercise.name for result in class_[0].report.exercises] if class_ else []
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(
        [
            *("student", "points", "max_points", *names),
            *("failed", "blocked", "first_missed", "seconds", "sandbox", "reason"),
        ]
    )
    for graded in class_:
        criteria = [each for result in graded.report.exercises for each in result.criteria]
        verdicts = Counter(each.verdict for each in criteria)
        missed = next((each.criterion.name for each in criteria if each.verdict is Verdict.FAILED), "")
        row: list[object] = [graded.student, graded.report.points, graded.report.max_points]
        row += [result.points for result in graded.report.exercises]
        row += [verdicts[Verdict.FAILED], verdicts[Verdict.BLOCKED], missed, graded.seconds]
        row += [graded.sandbox, graded.reason]
        table.writerow(map(_harmless, row))
    return text.getvalue()


def write_pages(folder: Path, unit: str, class_: Sequence[Graded]) -> Path:
    """Write every page of a unit; returns where the class page is."""
    for graded in class_:
        _write_if_new(folder / "feedback" / f"{graded.student}.html", student_page(graded))
    _write_if_new(folder / "class.csv", class_csv(class_))
    path = folder / "class.html"
    _write_if_new(path, class_page(unit, class_))
    return path


def _write_if_new(path: Path, text: str) -> None:
    if not path.exists() or path.read_bytes() != text.encode("utf-8", "replace"):
        write_whole(path, text)


def _harmless(value: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value


def _slowest(class_: Sequence[Graded]) -> list[Graded]:
    return sorted(class_, key=lambda graded: graded.seconds, reverse=True)[:SLOWEST]


def _summary(class_: Sequence[Graded]) -> str:
    if not class_:
        return "<p>Nothing has been graded.</p>"
    points = [graded.report.points for graded in class_]
    told = f"Mean {fmean(points):.1f}, median {median(points):g} of {class_[0].report.max_points:g} points."
    unsafe = sum(not graded.sandboxed for graded in class_)
    notice = f'<p class="notice">{unsafe} of {len(class_)}: {escape(UNSANDBOXED)}</p>' if unsafe else ""
    return f"<p>{told}</p>{notice}"


_PARTS = (
    ("solved", LOOKS[Verdict.PASSED].background),
    ("partly", LOOKS[Verdict.BLOCKED].background),
    ("failed", LOOKS[Verdict.FAILED].background),
    ("untouched", LOOKS[Verdict.NOT_ATTEMPTED].background),
)


def _legend() -> str:
    shown = "".join(f'<span style="background:{colour}">{name}</span>' for name, colour in _PARTS)
    return f'<p class="legend">From left to right: {shown}</p>'


def _exercise_row(standing: Standing) -> tuple[str, ...]:
    counts = [(name, colour, int(getattr(standing, name))) for name, colour in _PARTS]
    told = ", ".join(f"{count} {name}" for name, _, count in counts)
    bar = "".join(
        f'<span style="flex:{count} 0 0;background:{colour}">{count}</span>'
        for _, colour, count in counts
        if count
    )
    shown = f'<div class="bar" role="img" aria-label="{told}" title="{told}">{bar}</div>'
    mean = f"{standing.mean:.2f} of {standing.exercise.points:g}"
    return standing.exercise.name, mean, _Html(shown), str(standing.blocked)


def _miss_rows(found: Iterable[Standing]) -> Iterator[tuple[str, ...]]:
    rows = [(standing.exercise.name, miss) for standing in found for miss in standing.misses if miss.failed]
    for exercise, miss in sorted(rows, key=lambda row: row[1].failed, reverse=True):
        yield (
            exercise,
            miss.criterion.name,
            str(miss.failed),
            str(miss.blocked),
            miss.seen,
            str(miss.seen_count),
        )


class _Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    body = "".join(
        "<tr>"
        + "".join(_cell(text, "number" if column in numbers else "text") for column, text in enumerate(row))
        + "</tr>"
        for row in rows
    )
    if not body:
        return "<p>Nothing.</p>"
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    return f'<table class="class"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: str, kind: str) -> str:
    shown = text if isinstance(text, _Html) else escape(text)
    return f'<td class="{kind}">{shown}</td>'


def _page(title: str, parts: Iterable[str]) -> str:
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )
