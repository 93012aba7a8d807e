"""`build/gpu.json` and `build/gpu.html`: what `course gpu` has found, for programs and for readers."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from course_lib.figures.style import figure_html
from workbook.gpu.checks import Check
from workbook.gpu.measure import Table
from workbook.pages import TEMPLATES

REPORTS = ("gpu.json", "gpu.html")


def machine() -> str:
    """The devices, and what computes on them, in a line."""
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(number) for number in range(count)})
    devices = f"{count} x {', '.join(names)}" if count else f"no GPU ({platform.machine()})"
    return f"{devices}, {len(os.sched_getaffinity(0))} cores; torch {torch.__version__}"


def write_report(
    folder: Path, tables: Sequence[Table], checks: Sequence[Check], failures: Sequence[str]
) -> Path:
    """Write both files; returns where the page is. failures: sentences."""
    where = machine()
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "machine": where,
        "measured": {table.name: list(table.rows) for table in tables},
        "checks": [asdict(check) for check in checks],
        "failures": list(failures),
    }
    numbers, page = (folder / name for name in REPORTS)
    numbers.write_text(json.dumps(found, indent=1) + "\n")
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, undefined=StrictUndefined
    )
    page.write_text(
        templates.get_template("gpu.html.j2").render(
            machine=where,
            sections=[(table, Markup(figure_html(table.figure))) for table in tables],
            checks=checks,
            failures=failures,
            shown=shown,
        )
    )
    return page


def shown(value: str | float) -> str:
    """A cell of a table: numbers with three digits that count."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
