"""`python -m benchmarks.grading [COUNT]`: a class of unit 02, graded by `course grade` and by stock nbgrader.

The submissions are made of the unit's own solutions and of the wrong answers that prove its graders, in the
proportions of a class: most answers right, some wrong, some never begun, a few that hang, end the process, or
are hostile. Stock nbgrader runs a sample of the same notebooks, demonstrations included, for it knows of no
others; those that hang or are hostile are left out of its sample, which spares it their time-outs. Both are
started once, as commands. Then the class is graded again: unchanged, after a line more in another unit's
grader, and after a line more in this unit's.
"""

import ast
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import nbformat

from benchmarks.measure import Row, show, times_faster
from graders.grading.registry import exercises
from workbook.unit import BEGIN, END

ROOT = Path(__file__).parents[1]
UNIT = "02_data_parallel"
COUNT, SAMPLE = 200, 4
RIGHT, WRONG, STUB = 0.65, 0.2, 0.13
"""Of the answers; of the rest, half raise, and half end the process or hang."""
HANGING = 0.03
"""Of the submissions, each in one answer."""
HOSTILE = 0.02
"""The same."""
ATTACKS = (
    "for _ in range(300): print('x' * 2**20)",
    "import os, signal\n    while True:\n        os.fork() or (os.setsid(), signal.pause())",
    "held = [bytearray(b'x' * 2**26) for _ in range(200)]",
)
STOCK = """
c = get_config()
c.CourseDirectory.source_directory = "build/source"
c.CourseDirectory.release_directory = "build/release"
"""

Notebook = nbformat.NotebookNode


def rows(count: int = COUNT) -> list[Row]:
    """Seconds a submission: all of the class by `course grade`, the sample by `nbgrader autograde`."""
    with tempfile.TemporaryDirectory() as folder:
        library = _copy_of_library(Path(folder) / "library")
        root = _course(Path(folder) / "ours", (ROOT / "nbgrader_config.py").read_text())
        unlike = _hand_in(root, count, random.Random(0))
        ours = _graded(root, library)
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        stock = _course(Path(folder) / "stock", STOCK)
        sample = [name for name in sorted(os.listdir(root / "submitted")) if name not in unlike][:SAMPLE]
        for name in sample:
            shutil.copytree(root / "submitted" / name, stock / "submitted" / name)
        theirs = _seconds([sys.executable, "-m", "nbgrader", "autograde", UNIT], stock)
        again = {"nothing": _graded(root, library)}
        for module in ("unit_07/ring_all_reduce", "unit_02/average_gradients"):
            grader = library / "graders" / "units" / f"{module}.py"
            grader.write_text(f"{grader.read_text()}# A line more.\n")
            again[f"a line of graders/units/{module}.py"] = _graded(root, library)
    print(f"course grade: {60 * count / ours:.0f} submissions a minute; {count} in {ours:.0f} s")
    print(f"nbgrader autograde: {60 * len(sample) / theirs:.1f} submissions a minute; {len(sample)} tried")
    print(f"The largest process held {largest:.0f} MiB.")
    for what, seconds in again.items():
        print(f"course grade, when {what} has changed: {seconds:.1f} s")
    what = f"a submission of {UNIT}, class of {count}"
    return [times_faster(what, ours / count, theirs / len(sample), "nbgrader autograde", 20)]


def _course(root: Path, configuration: str) -> Path:
    shutil.copytree(ROOT / "solutions", root / "solutions")
    (root / "nbgrader_config.py").write_text(configuration)
    _seconds([sys.executable, "-m", "workbook.cli", "release", UNIT], root)
    return root


def _copy_of_library(folder: Path) -> Path:
    """A copy of library and graders, so that a line can be added."""
    # Graders of unit 03 read the list of sites.
    for name in ("course_lib", "graders", "slurm"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _graded(root: Path, library: Path) -> float:
    """Seconds that `course grade` takes, with this copy of the library. Everybody must get a grade."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "workbook.cli", "grade", UNIT]
    subprocess.run(command, cwd=root, env=_environment(library), capture_output=True, check=True)
    return time.perf_counter() - began


def _hand_in(root: Path, count: int, chance: random.Random) -> set[str]:
    """Hand in so many notebooks; returns the names of those that hang or are hostile."""
    source = nbformat.read(root / "build" / "source" / UNIT / f"{UNIT}.ipynb", as_version=4)
    released = nbformat.read(root / "build" / "release" / UNIT / f"{UNIT}.ipynb", as_version=4)
    right, stubs = _answers(source), _answers(released)
    unlike = set()
    for number in range(count):
        answers = {name: _answer(name, right, stubs, chance) for name in exercises(UNIT)}
        bad = chance.random()
        if bad < HANGING + HOSTILE:
            name = chance.choice(sorted(answers))
            body = "while True: pass" if bad < HANGING else chance.choice(ATTACKS)
            answers[name] = f"def {name}(*arguments):\n    {body}"
            unlike.add(f"student_{number:03}")
        for cell in released.cells:
            if "exercise" in cell.metadata:
                cell.source = answers[cell.metadata["exercise"]]
        path = root / "submitted" / f"student_{number:03}" / UNIT / f"{UNIT}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(released, path)
    return unlike


def _answers(notebook: Notebook) -> dict[str, str]:
    return {
        cell.metadata["exercise"]: "\n".join(
            line for line in cell.source.split("\n") if line.strip() not in (BEGIN, END)
        )
        for cell in notebook.cells
        if "exercise" in cell.metadata
    }


def _answer(name: str, right: dict[str, str], stubs: dict[str, str], chance: random.Random) -> str:
    """One student's answer to an exercise."""
    draw = chance.random()
    if draw < RIGHT:
        return right[name]
    if draw < RIGHT + WRONG:
        return chance.choice(_wrong_sources(name, right[name]))
    if draw < RIGHT + WRONG + STUB:
        return stubs[name]
    end = chance.choice(["raise ValueError('no')", "import os; os._exit(1)"])
    return f"def {name}(*arguments):\n    {end}"


@cache
def _wrong_sources(name: str, right: str) -> Sequence[str]:
    """The proofs' wrong answers as a student would have written them: under the exercise's own name.

    right: the solution, of which some are changes. The others stand in one cell with what the proofs import
    and define for all of them.
    """
    shared, found, changed = [], [], []
    for node in ast.parse((ROOT / "tests" / "wrong_answers" / f"{UNIT}.py").read_text()).body:
        match node:
            case ast.FunctionDef(decorator_list=[]) | ast.ClassDef(decorator_list=[]) | ast.Import():
                shared.append(ast.unparse(node))
            case ast.ImportFrom(module=module) if module != "tests.answers":
                shared.append(ast.unparse(node))
            case (
                ast.FunctionDef(decorator_list=[ast.Call() as proof])
                | ast.ClassDef(decorator_list=[ast.Call() as proof])
            ):
                of = ast.unparse(proof)
                if of.startswith(f"wrong({name!r}"):
                    node.decorator_list, node.name = [], name
                    found.append(ast.unparse(node))
                elif of.startswith(f"instead({name!r}"):
                    changed.append(_changed(right + "\n", proof.args[1:]))
    return ["\n".join([*shared, source]) for source in found] + changed


def _changed(source: str, changes: Sequence[ast.expr]) -> str:
    """The source with other texts in it. changes: each the text as it was and as it is."""
    for change in changes:
        was, now = ast.literal_eval(change)
        source = source.replace(was, now)
    return source


def _seconds(command: list[str], root: Path) -> float:
    """How long a command takes in a course's folder; whatever it exits with, for stock gives up on some."""
    began = time.perf_counter()
    subprocess.run(command, cwd=root, env=_environment(ROOT), capture_output=True, check=False)
    return time.perf_counter() - began


def _environment(library: Path) -> dict[str, str]:
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PYTHONPATH": str(library), "PATH": programs}


if __name__ == "__main__":
    show(rows(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
