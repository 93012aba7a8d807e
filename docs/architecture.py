"""`make docs`: docs/architecture.md and its figure, drawn from the code, so that they cannot rot.

The rooms and their arrows come from the imports (grimp), the flows from runs whose calls are watched. A test
draws the page anew and compares.
"""

import ast
import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from io import StringIO
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import grimp
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.figures.style import COLOURS, GREY, Drawing, new_figure

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
FIGURE = ROOT / "docs" / "architecture.svg"
PACKAGES = ("course_lib", "graders", "workbook")
UNIT = "00_hello_ranks"

LEVELS = (
    ("workbook",),
    ("graders.commands",),
    ("graders.classroom", "graders.student"),
    ("graders.host", "graders.guest", "graders.units"),
    ("graders.submissions", "graders.protocol"),
    ("graders.grading", "graders.isolation"),
    ("course_lib.training", "course_lib.notebook"),
    ("course_lib.launch",),
    ("course_lib.figures", "course_lib.runtime.processes", "course_lib.runtime.simulator"),
    ("course_lib.runtime.communication", "course_lib.slurm"),
    ("course_lib.cluster", "course_lib.beside"),
)
"""The rooms as they are drawn, from top to bottom. What lies in no room is left out of the figure."""

CLASS = "graders.classroom.grade_class"
DOOR = ("workbook/cli.py", "graders/commands.py", "graders/classroom/terminal.py")
"""Through these files `course grade` comes before it reaches the class."""

ROOMS = tuple(room for level in LEVELS for room in level)


@dataclass(frozen=True, slots=True)
class Leg:
    """A part of a flow in one process: the files that it passes, in the order in which it enters them."""

    process: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """What happens when somebody calls something."""

    title: str
    story: str
    legs: tuple[Leg, ...]


# --- Rooms


def import_graph() -> grimp.ImportGraph:
    """Who imports whom, within functions too, but not for types alone."""
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)


def room_of(module: str) -> str | None:
    """The room in which a module lies."""
    return next((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), None)


def arrows(graph: grimp.ImportGraph) -> list[tuple[str, str]]:
    """Which room imports which, as sorted pairs."""
    pairs = {
        (room_of(importer), room_of(imported))
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    }
    return sorted((a, b) for a, b in pairs if a and b and a != b)


def purpose(name: str) -> str:
    """The first paragraph of the docstring of a module or package, without its full stop."""
    path = ROOT.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return told.split("\n\n")[0].replace("\n", " ").removesuffix(".")


# --- Flows


def watched(function: Callable[[], object]) -> tuple[str, ...]:
    """The project's files that a call enters, in this order, in all threads of this process.

    It is called once before, so that what is imported or made once does not count.
    """
    entered: dict[str, None] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(_FOLDERS):
            entered.setdefault(code.co_filename)

    with redirect_stdout(StringIO()):
        function()
        threading.setprofile(look)
        sys.setprofile(look)
        try:
            function()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return tuple(str(Path(file).relative_to(ROOT)) for file in entered)


_FOLDERS = tuple(f"{ROOT / package}/" for package in PACKAGES)


def graders_only(files: Sequence[str]) -> tuple[str, ...]:
    """The files of `graders` among these."""
    return tuple(file for file in files if file.startswith("graders/"))


def loaded(graph: grimp.ImportGraph, entry: str, rooms: Sequence[str]) -> tuple[str, ...]:
    """The files of these rooms that a process can reach which starts in the module `entry`, nearest first."""
    found, queue = [entry], [entry]
    while queue:
        for module in sorted(graph.find_modules_directly_imported_by(queue.pop(0))):
            if module not in found and room_of(module) in rooms:
                found.append(module)
                queue.append(module)
    return tuple(f"{module.replace('.', '/')}.py" for module in found)


def all_reduced(x: torch.Tensor) -> torch.Tensor:
    """What the flow of `launch` runs."""
    dist.all_reduce(x)
    return x


def flows(graph: grimp.ImportGraph) -> Iterator[Flow]:
    """The three flows, run and watched."""
    processes = ("course_lib.runtime.processes",)
    yield Flow(
        "`launch(f, x, ranks=4)`",
        "One door, an engine behind it, and a `Run` that comes out, whichever engine it was.",
        (
            Leg("the kernel, simulated", watched(lambda: launch(all_reduced, torch.ones(2), ranks=4))),
            Leg(
                'the kernel, `on="processes"`',
                watched(lambda: launch(all_reduced, torch.ones(2), ranks=2, on="processes")),
            ),
            Leg("each rank's process", loaded(graph, "course_lib.runtime.processes.rank", processes)),
        ),
    )
    from graders import check

    answer = solved()["pass_the_token"]
    yield Flow(
        "`check(answer)`",
        "The grader drives the answer in the kernel itself; nothing but plain data comes back to it.",
        (Leg("the student's kernel", graders_only(watched(lambda: check(answer)))),),
    )
    command = ("graders.classroom", "graders.grading", "graders.submissions")
    guest = ("graders.guest", "graders.protocol", "graders.isolation")
    with tempfile.TemporaryDirectory() as folder:
        yield Flow(
            "`course grade UNIT`",
            "The same grader, with the answer out of reach: the verdict is never computed in its process.",
            (
                Leg(
                    "the command's process", (*DOOR, *loaded(graph, "graders.classroom.grade_class", command))
                ),
                Leg("the judge's process, one a core", graders_only(watched(lambda: judged(Path(folder))))),
                Leg("the processes in the sandbox", loaded(graph, "graders.guest.fork_server", guest)),
            ),
        )


def solved() -> Mapping[str, Any]:
    """The names that the solution of the unit defines."""
    from graders.guest.run_cells import run_cells
    from graders.submissions.read import read_submission

    names: dict[str, Any] = {"__name__": "solution"}
    run_cells(read_submission(ROOT / "solutions" / f"{UNIT}.py").cells, names)
    return names


def judged(folder: Path) -> None:
    """Grade one submission as the judge of a class does."""
    from graders.classroom.judge_process import grade_folder

    (folder / f"{UNIT}.py").write_text((ROOT / "solutions" / f"{UNIT}.py").read_text(encoding="utf-8"))
    grade_folder(str(folder), UNIT, "somebody", "key", True)


# --- The page


def reduced(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The arrows without those that a way over other rooms implies. There must be no circle."""
    below = defaultdict(set)
    for a, b in pairs:
        below[a].add(b)

    def reach(room: str) -> set[str]:
        return set().union(*({b} | reach(b) for b in below[room])) if below[room] else set()

    return [(a, b) for a, b in pairs if not any(b in reach(c) for c in below[a] - {b})]


def figure(pairs: Sequence[tuple[str, str]]) -> Drawing:
    """The rooms from top to bottom, and the arrows between them."""
    alt = "Rooms and arrows: " + "; ".join(f"{a} needs {b}" for a, b in pairs) + "."
    drawing, axes = new_figure(height=8.5, alt=alt)
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(-0.5, len(LEVELS) - 0.5))
    place = {}
    for level, rooms in enumerate(LEVELS):
        for number, room in enumerate(rooms):
            place[room] = ((number + 0.5) / len(rooms), len(LEVELS) - 1 - level)
    for a, b in pairs:
        axes.annotate(
            "",
            xy=(place[b][0], place[b][1] + 0.26),
            xytext=(place[a][0], place[a][1] - 0.26),
            arrowprops={"arrowstyle": "->", "color": GREY, "shrinkA": 0, "shrinkB": 0},
        )
    colours = {"workbook": "sky_blue", "graders": "orange", "course_lib": "bluish_green"}
    for room, (x, y) in place.items():
        package, _, name = room.partition(".")
        box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": COLOURS[colours[package]]}
        text = f"{package}\n{name}" if name else package
        axes.text(x, y, text, ha="center", va="center", fontsize=9, bbox={**box, "linewidth": 1.8})
    return drawing


def page(pairs: Sequence[tuple[str, str]], told: Sequence[Flow]) -> str:
    """The text of docs/architecture.md."""
    lines = [
        "# How the code is laid out",
        "",
        "The folder says what a line is for, in which process it runs, and what it may import. Arrows point "
        "down, and `make lint` holds them (import-linter, in pyproject.toml). This page is drawn from the "
        "code by `make docs`; a test fails when it is out of date.",
        "",
        f"![Rooms of the code and who imports whom, as listed below.]({FIGURE.name})",
        "",
        "An arrow that follows from others is not drawn. Below is what three calls pass: folder by folder, "
        "the files in the order in which a run enters them, and of processes that are started those that "
        "they can reach. Where graders launch, what follows is that of `launch`.",
        "",
        "| Room | What it is for | Needs |",
        "|---|---|---|",
    ]
    for room in ROOMS:
        needs = ", ".join(f"`{b.removeprefix('course_lib.')}`" for a, b in pairs if a == room) or "nothing"
        lines.append(f"| `{room.replace('.', '/')}` | {purpose(room)} | {needs} |")
    for flow in told:
        lines += ["", f"## {flow.title}", "", flow.story]
        for leg in flow.legs:
            lines += ["", f"In {leg.process}:", "", *steps(leg.files)]
    return "\n".join(lines) + "\n"


def steps(files: Sequence[str]) -> Iterator[str]:
    """A numbered line for each folder that a flow comes through, with the files that it enters there."""
    for number, (folder, inside) in enumerate(groupby(map(Path, files), key=lambda file: file.parent), 1):
        yield f"{number}. `{folder}/`: " + ", ".join(f"[{file.stem}](../{file})" for file in inside)


def written() -> tuple[str, list[tuple[str, str]]]:
    """The page and the arrows of its figure, as the code is now."""
    graph = import_graph()
    pairs = reduced(arrows(graph))
    with tempfile.TemporaryDirectory() as home, mock.patch.dict(os.environ, COURSE_HOME=home):
        return page(pairs, list(flows(graph))), pairs


def main(arguments: Sequence[str]) -> int:
    """Write both, or with --check only say whether the page is what the code is now; returns the status."""
    text, pairs = written()
    if "--check" in arguments:
        fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("fresh" if fresh else f"{PAGE.relative_to(ROOT)} is not what the code is now: make docs")
        return 0 if fresh else 1
    PAGE.write_text(text, encoding="utf-8")
    figure(pairs).savefig(FIGURE, metadata={"Date": None})
    print(f"Written: {PAGE.relative_to(ROOT)}, {FIGURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
