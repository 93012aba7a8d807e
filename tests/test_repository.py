"""What holds for the whole repository: nothing stale, nothing private, no answer outside `solutions/`."""

import ast
import json
import os
import re
import statistics
import subprocess
import symtable
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
import pytest

from graders.grading.registry import exercises
from graders.submissions import released_cells
from graders.submissions.read import from_notebook
from workbook.index import index_notebook
from workbook.paths import Places
from workbook.release import has_work, release, write_source
from workbook.unit import BEGIN, END, Unit, read_units

ROOT = Path(__file__).parents[1]
PLACES = Places(ROOT)
NAMES = [path.stem for path in sorted(PLACES.solutions.glob("*.py"))]

LINES, LINES_OF_A_GRADER, BODY = 300, 200, 40
"""Most lines of a module, of one in graders/units, and of a function's body; a longer module says why."""
COLUMNS = 104
"""Of a docstring in an exercise, and of code in a text."""
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
ROOMS = ("course_lib", "graders", "workbook", "mutants", "benchmarks")

# Units are read where they are tested: every worker collects all tests.
pytestmark = pytest.mark.xdist_group("repository")


@cache
def units() -> dict[str, Unit]:
    """Every unit by its name."""
    return {unit.name: unit for unit in read_units(PLACES.solutions)}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that git keeps and that is there."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / name for name in done.stdout.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


@cache
def texts() -> dict[str, str]:
    """Name and text of every tracked file: there are no binary ones."""
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in tracked()}


def test_no_name_is_defined_twice_in_a_module():
    # Invariant: no class or function takes the place of another. Ruff lets it pass where the first was used.
    for name, text in texts().items():
        if not name.endswith(".py"):
            continue
        defined = [
            node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
        twice = [each for each, count in Counter(defined).items() if count > 1]
        assert not twice, f"{name} defines more than once: {', '.join(twice)}"


def test_modules_and_functions_fit_on_a_few_screens():
    # Invariant: what is longer says why. A docstring of a function does not count.
    long = []
    for name, text in texts().items():
        if name.endswith(".py") and name.startswith(ROOMS):
            tree = ast.parse(text)
            says_why = "Longer than other modules: " in (ast.get_docstring(tree) or "")
            most = LINES_OF_A_GRADER if name.startswith("graders/units/") else LINES
            if len(text.splitlines()) > most and not says_why:
                long.append(f"{name}: {len(text.splitlines())} lines")
            long += [
                f"{name}: {node.name}, {_lines(node)} lines"
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef) and _lines(node) > BODY
            ]
    assert not long


def test_specifications_are_read_without_scrolling():
    # Invariant: no line of a docstring that students get in an exercise's cell is wider than this.
    wide = [
        f"{name}: {cell.metadata['exercise']}, {len(line)} columns: {line.strip()}"
        for name in NAMES
        for cell in units()[name].notebook.cells
        if "exercise" in cell.metadata
        for line in _specifications(cell.source)
        if len(line) > COLUMNS
    ]
    assert not wide


def test_specifications_are_short():
    # Invariant: nobody reads a specification of more words than these; half of all have at most 70.
    words = {
        cell.metadata["exercise"]: len(ast.get_docstring(_asked_for(cell)).split())
        for name in NAMES
        for cell in units()[name].notebook.cells
        if "exercise" in cell.metadata
    }
    assert {name: number for name, number in words.items() if number > 120} == {}
    assert statistics.median(words.values()) <= 70


def test_code_in_a_text_is_read_without_scrolling():
    # Invariant: none is so wide that JupyterLab breaks it, after which its end looks like a line of its own.
    wide = [
        f"{name}: {len(line)} columns: {line.strip()}"
        for name, text in _texts()
        for block in FENCED.findall(text)
        for line in block.splitlines()
        if len(line) > COLUMNS
    ]
    assert not wide


def test_no_line_of_a_text_begins_with_a_year():
    # Invariant: "2009." at the beginning of a line is no item of a list; Markdown would make it one.
    years = [
        f"{name}: {line}"
        for name, text in _texts()
        for line in FENCED.sub("", text).splitlines()
        if re.match(r"\s*\d{3,}[.)](\s|$)", line)
    ]
    assert not years


def _texts() -> Iterator[tuple[str, str]]:
    """Each unit's name with the text of each of its Markdown cells."""
    for name in NAMES:
        for cell in units()[name].notebook.cells:
            if cell.cell_type == "markdown":
                yield name, cell.source


def _specifications(source: str) -> Iterator[str]:
    """The lines of the docstrings of an exercise's cell, but for those in its solutions."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            text = node.body[0]
            begun = [line.strip() for line in lines[: text.lineno] if line.strip() in (BEGIN, END)]
            yield from [] if begun[-1:] == [BEGIN] else lines[text.lineno - 1 : text.end_lineno]


def _asked_for(cell: nbformat.NotebookNode) -> ast.FunctionDef | ast.ClassDef:
    """What an exercise's cell is to define; it may have helpers beside."""
    return next(
        node
        for node in ast.parse(cell.source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == cell.metadata["exercise"]
    )


def _lines(function: ast.FunctionDef) -> int:
    """Of the body without its docstring."""
    body = function.body[ast.get_docstring(function) is not None :]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_fresh(name: str, tmp_path):
    # Invariant: the committed notebook is what the build makes of the source today: `make notebooks`.
    places = Places(tmp_path)
    write_source(units()[name], exercises(name), places)
    assert PLACES.of_unit(PLACES.notebooks, name).read_bytes() == release(name, places).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_kept_originals_are_fresh(name: str, tmp_path, monkeypatch):
    # Invariant: `reset` gives back the cell that the committed notebook had: `make notebooks`.
    kept = released_cells.path_of(name).read_text()
    monkeypatch.setattr(released_cells, "DIRECTORY", tmp_path)
    written = released_cells.write_released_cells(PLACES.of_unit(PLACES.notebooks, name))
    assert written.read_text() == kept


@pytest.mark.parametrize("name", NAMES)
def test_without_metadata_the_same_cells_are_run(name: str):
    # Invariant: demonstrations, which train or wait, are known by their sources, and no other cell is.
    book = nbformat.read(PLACES.of_unit(PLACES.notebooks, name), as_version=4)
    graded = [cell.source for cell in from_notebook(book, "whole").cells]
    for cell in book.cells:
        cell.metadata = nbformat.NotebookNode()
    assert [cell.source for cell in from_notebook(book, "stripped").cells] == graded


def scopes_in(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """A scope and all that are within it."""
    yield table
    for child in table.get_children():
        yield from scopes_in(child)


@pytest.mark.parametrize("unit", NAMES)
def test_a_unit_runs_without_the_libraries_beside_it(unit: str):
    # Invariant: what cells make that wait for a library, only cells use that wait for it too.
    waits: dict[str, set[str]] = {}
    for cell in (cell for cell in units()[unit].notebook.cells if cell.cell_type == "code"):
        first, *others = re.sub(r"^# (?=%)", "", cell.source, flags=re.MULTILINE).splitlines()
        needs = {
            word
            for word in first.split()
            if first.startswith("%%") and word.startswith(("beside:", "torch>="))
        }
        source = "\n".join(line for line in (first, *others) if not line.startswith("%"))
        table = symtable.symtable(source, "cell", "exec")
        makes = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
        scopes = {scope: scope is table for scope in scopes_in(table)}
        uses = {
            each.get_name()
            for scope, outermost in scopes.items()
            for each in scope.get_symbols()
            if each.is_referenced() and (outermost or each.is_global())
        }
        for name in (uses - makes) & waits.keys():
            assert waits[name] <= needs, f"{name}, in the cell that begins with {cell.source[:80]!r}"
        for name in makes:
            waits[name] = waits.get(name, needs) & needs


def test_there_is_a_notebook_for_every_unit_and_no_other():
    kept = {name for name in texts() if name.startswith("notebooks/")}
    assert kept == {"notebooks/index.ipynb", *(f"notebooks/{name}/{name}.ipynb" for name in units())}


def test_the_index_is_that_of_the_units():
    # Invariant: what students open first has a line for each unit, and each link leads to a notebook.
    written = nbformat.writes(index_notebook(list(units().values()), exercises)) + "\n"
    assert PLACES.index.read_text() == written, "make notebooks"
    links = re.findall(r"\]\(([^)]+\.ipynb)\)", nbformat.reads(written, as_version=4).cells[0].source)
    assert [PLACES.notebooks / link for link in links] == [
        PLACES.of_unit(PLACES.notebooks, name) for name in units()
    ]


def test_no_notebook_holds_work_or_an_answer():
    # Invariant: what students open is empty of outputs, answers and the marks around them.
    import nbformat

    for name in units():
        path = PLACES.of_unit(PLACES.notebooks, name)
        assert not has_work(nbformat.read(path, as_version=4))
        assert "SOLUTION" not in path.read_text()


def library_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and path.is_relative_to(ROOT / "course_lib")]


def test_the_library_marks_no_answers():
    # Invariant: answers stand in solutions/ only; a line that is a marker would hide one.
    for path in library_files():
        lines = [line.strip() for line in path.read_text().splitlines()]
        assert not {BEGIN, END} & set(lines), path


def test_the_library_defines_no_exercise():
    # Invariant: nothing in course_lib has the name of an exercise, so nothing there can be imported as its
    # answer.
    names = {answer.name for unit in units().values() for answer in unit.answers}
    for path in library_files():
        nodes = ast.parse(path.read_text()).body
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        defined = {node.name for node in nodes if isinstance(node, kinds)}
        assert not names & defined, path


PRIVATE = re.compile(
    r"(?<![\w.])/(?:root|home/(?!student)\w+|Users/\w+|work)/\w|(?:localhost|127\.0\.0\.1):\d{4}"
)
"""A path or an address that makes sense on one machine only; /home/student is anybody's."""


def test_no_file_names_a_machine():
    for name, text in texts().items():
        assert not PRIVATE.search(text), name


def test_nothing_large_and_nothing_made_is_kept():
    # Invariant: sources only; no gradebook, no build, no file that would slow every clone.
    for path in tracked():
        assert path.stat().st_size < 500_000, path
    made = re.compile(r"^(build|submitted|autograded|feedback|exchange|results|\.venv)/|gradebook\.db")
    assert not [name for name in texts() if made.search(name)]


def test_links_between_files_lead_somewhere():
    # Invariant: a relative link in a Markdown file names a file that is kept.
    for name, text in texts().items():
        if name.endswith(".md"):
            for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
                assert (ROOT / name).parent.joinpath(target).exists(), f"{name}: {target}"


NOT_KEPT = ("build/", "exchange/", "feedback/", "results/", "submitted/", ".venv/")
"""Folders that the workbook makes, of which texts speak too."""


def test_paths_in_texts_lead_somewhere():
    # Invariant: each file, folder and module of ours that a text names in backticks is kept. A bare file name
    # is that of some file. What has changed tells of old modules, too.
    names = {path.name for path in tracked()}
    for name, text in texts().items():
        if not name.endswith(".md"):
            continue
        for path in re.findall(r"`((?!/)[\w./-]+/[\w./-]*)`", text):
            there = (ROOT / path).exists() or (ROOT / f"{path}.py").exists()
            assert there or path.startswith(NOT_KEPT) or "STUDENT" in path, f"{name}: {path}"
        assert set(re.findall(r"`(\w+\.py)`", text)) <= names, name
        for module in re.findall(r"`((?:course_lib|graders|workbook)(?:\.\w+)+)`", text):
            places = [ROOT / module.replace(".", "/"), (ROOT / module.replace(".", "/")).parent]
            found = any(place.exists() or place.with_suffix(".py").exists() for place in places)
            assert found or name == "CHANGELOG.md", f"{name}: {module}"


def test_the_threat_model_names_tests_that_are_there():
    # Invariant: each promise is tried, by a test or an attack that there is.
    text = texts()["docs/threat-model.md"]
    promises = [row.split("|") for row in text.splitlines() if row.startswith("| ") and "`test_" in row]
    assert len(promises) >= 12
    for file, test in re.findall(r"`(test_\w+\.py)::(\w+)`", text):
        assert f"def {test}(" in texts()[f"tests/{file}"], test
    for row in text.splitlines():
        for attack in re.findall(r"`(\w+)`", row.partition("attack")[2]) if row.startswith("| ") else ():
            assert f"tests/attacks/{attack}.py" in texts(), attack


def test_json_files_are_json():
    for name, text in texts().items():
        if name.endswith((".json", ".ipynb")):
            json.loads(text)


def test_tests_of_a_group_share_a_worker(request: pytest.FixtureRequest):
    # Invariant: pytest and pytest-xdist fit each other; otherwise each worker starts clusters of its own.
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@repository")
