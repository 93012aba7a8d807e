"""The command `course`, as somebody at a terminal meets it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from graders.grading import registry
from graders.grading.exercise import REGISTRY
from graders.submissions import released_cells
from tests.sample_source import EFFORTS, NAME, SOURCE, write_unit
from workbook import cli

ROOT = Path(__file__).parents[1]


@pytest.fixture
def sample_graders(monkeypatch, tmp_path):
    """The sample unit counts as one that has graders, and its originals are kept out of the repository."""
    monkeypatch.setitem(REGISTRY, NAME, EFFORTS)
    monkeypatch.setattr(released_cells, "DIRECTORY", tmp_path / "stubs")


def course(monkeypatch, *arguments: object) -> int:
    """Run `course` with these arguments in this process; returns its exit status."""
    monkeypatch.setattr(sys, "argv", ["course", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0


def test_help_starts_at_once():
    # Invariant: `course --help` imports neither torch nor nbgrader, which would take it seconds.
    program = (
        "import sys, workbook.cli\n"
        "print(sorted({'torch', 'nbgrader', 'nbconvert', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_hint_loads_the_graders_of_its_unit_only(tmp_path):
    # Invariant: one exercise's hint, check or unit costs the import of its unit's graders, not of all.
    program = (
        "import sys\n"
        "from graders import commands\n"
        "from graders.grading.registry import exercises\n"
        "def units(): return sorted({name.split('.')[2] for name in sys.modules if '.unit_' in name})\n"
        "commands.hint('average_gradients', 3)\n"
        "print(units(), *exercises('99_no_unit'), *exercises('00_hello_ranks'), units())\n"
    )
    command = [sys.executable, "-c", program]
    variables = os.environ | {"COURSE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    given, seen = done.stdout.splitlines()
    assert given.startswith("Hint 3 of 3 for average_gradients: ")
    assert seen == f"['unit_02'] {' '.join(registry.exercises('00_hello_ranks'))} ['unit_00', 'unit_02']"


def test_units_are_in_their_order_whichever_is_loaded_first(monkeypatch):
    # Invariant: progress and class pages list units by their number, after a check of a later one too.
    turned = dict(reversed(registry.load_all().items()))
    monkeypatch.setattr(registry, "REGISTRY", turned)
    assert list(registry.load_all()) == sorted(turned)


def test_every_command_is_explained():
    # Invariant: a command that nobody can find is no command.
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    names = [command.name or command.callback.__name__ for command in cli.app.registered_commands]
    missing = [name for name in names if not re.search(rf"\bcourse {name}\b", pages)]
    assert "workbook" in names
    assert not missing


def test_notebooks_are_written_and_named(monkeypatch, tmp_path, capsys, sample_graders):
    write_unit(tmp_path)
    assert course(monkeypatch, "notebooks", "--root", tmp_path) == 0
    path = tmp_path / "notebooks" / NAME / f"{NAME}.ipynb"
    assert path.exists()
    assert capsys.readouterr().out == f"{path}\n{tmp_path / 'notebooks' / 'index.ipynb'}\n"
    assert "NotImplementedError" in released_cells.released_cell(NAME, "one_more")["source"]


def test_notebooks_leaves_work_alone_and_says_so(monkeypatch, tmp_path, capsys, sample_graders):
    # Invariant: work is lost only by somebody who asks for it with --force.
    write_unit(tmp_path)
    course(monkeypatch, "notebooks", "--root", tmp_path)
    path = tmp_path / "notebooks" / NAME / f"{NAME}.ipynb"
    worked = path.read_text().replace("raise NotImplementedError()", "return number + 1")
    path.write_text(worked)
    assert course(monkeypatch, "notebooks", "--root", tmp_path) == 1
    assert "has been worked in" in capsys.readouterr().err
    assert path.read_text() == worked
    assert course(monkeypatch, "notebooks", "--root", tmp_path, "--force") == 0
    assert "return number + 1" not in path.read_text()


def test_a_broken_unit_is_a_sentence_and_no_traceback(monkeypatch, tmp_path, capsys, sample_graders):
    write_unit(tmp_path, SOURCE.replace(" points=2", ""))
    assert course(monkeypatch, "workbook", "--root", tmp_path) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{NAME}.py: exercise one_more has no points;")
    assert len(said.splitlines()) == 1


def test_a_folder_without_units_is_a_sentence(monkeypatch, tmp_path, capsys):
    assert course(monkeypatch, "workbook", "--root", tmp_path) == 1
    assert "There are no units in" in capsys.readouterr().err


def test_an_unknown_unit_is_not_released(monkeypatch, tmp_path, capsys, sample_graders):
    write_unit(tmp_path)
    assert course(monkeypatch, "release", "99_nothing", "--root", tmp_path) == 1
    assert capsys.readouterr().err == f"There is no unit 99_nothing. The units are {NAME}.\n"


def test_release_tells_the_gradebook(monkeypatch, tmp_path, sample_graders):
    # Invariant: nbgrader then knows the exercise and its points, and its release is the student's notebook.
    from nbgrader.api import Gradebook

    write_unit(tmp_path)
    (tmp_path / "nbgrader_config.py").write_text((ROOT / "nbgrader_config.py").read_text())
    assert course(monkeypatch, "release", NAME, "--root", tmp_path) == 0
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        cells = gradebook.find_notebook(NAME, NAME).grade_cells
        assert [(cell.name, cell.max_score) for cell in cells] == [("check_one_more", 2)]
    released = (tmp_path / "build" / "release" / NAME / f"{NAME}.ipynb").read_text()
    course(monkeypatch, "notebooks", "--root", tmp_path)
    assert (tmp_path / "notebooks" / NAME / f"{NAME}.ipynb").read_text() == released


def test_a_script_goes_to_stdout_and_what_it_costs_to_stderr(monkeypatch, capsys):
    assert course(monkeypatch, "slurm", "render", "train_srun", "--site", "local", "--nodes", "2") == 0
    said = capsys.readouterr()
    assert said.out.startswith("#!/bin/bash")
    assert "node-hours" not in said.out
    assert said.err == "At most 2 nodes x 60 minutes = 2 node-hours.\n"


def test_what_a_site_refuses_ends_with_a_sentence(monkeypatch, capsys):
    options = ["--site", "frontera", "--array", "0-3"]
    assert course(monkeypatch, "slurm", "render", "workbook", NAME, *options) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "job arrays are not available" in said.err


def test_a_unit_that_is_not_in_this_folder_is_told_before_it_waits(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert course(monkeypatch, "slurm", "render", "workbook", NAME, "--site", "local") == 1
    assert "Call this in the folder that holds your notebooks/" in capsys.readouterr().err


def test_what_a_class_costs_is_told_for_every_queue(monkeypatch, capsys):
    assert course(monkeypatch, "slurm", "cost", "--site", "lonestar6", "--people", "40", "--hours", "4") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["gpu-a100"].endswith("480 SUs")
    assert lines["vm-small"].endswith("22.88 SUs")
    # Two hours at most: no queue for four.
    assert "development" not in lines
