"""`course start`: many users of one installation, each with a folder of notebooks, who hand in from there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbook.errors import CommandFailed
from workbook.paths import Places
from workbook.start import start

ROOT = Path(__file__).parents[1]
UNIT = "00_hello_ranks"
NOTEBOOK = f"notebooks/{UNIT}/{UNIT}.ipynb"


def test_every_notebook_is_copied_and_what_was_worked_in_stays(tmp_path: Path):
    installed = Places(ROOT)
    said = [*start(tmp_path, installed)]
    assert said == [
        f"The notebooks are in {tmp_path / 'notebooks'}. Begin with index.ipynb: cd {tmp_path} && jupyter lab"
    ]
    names = {path.relative_to(ROOT) for path in installed.notebooks.rglob("*.ipynb")}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.ipynb")} == names
    # Invariant: an answer is never replaced, an untouched notebook and the index become those of today.
    worked = json.loads((tmp_path / NOTEBOOK).read_text())
    code = next(cell for cell in worked["cells"] if cell["cell_type"] == "code")
    code["execution_count"] = 1
    (tmp_path / NOTEBOOK).write_text(json.dumps(worked))
    untouched = tmp_path / NOTEBOOK.replace(UNIT, "01_single_gpu")
    untouched.write_text(untouched.read_text().replace("Single", "Lonely"))
    said = [*start(tmp_path, installed)]
    assert said[0] == f"Kept, since you have worked in them: {UNIT}."
    assert json.loads((tmp_path / NOTEBOOK).read_text()) == worked
    assert untouched.read_bytes() == (ROOT / NOTEBOOK.replace(UNIT, "01_single_gpu")).read_bytes()


def test_what_cannot_be_written_or_is_not_there_is_a_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandFailed, match="name a folder of your own"):
        [*start(tmp_path / "file", Places(ROOT))]
    with pytest.raises(CommandFailed, match="this installation is without its folder"):
        [*start(tmp_path / "new", Places(tmp_path))]


@pytest.mark.skipif(not shutil.which("bwrap"), reason="install bubblewrap: apt-get install bubblewrap")
@pytest.mark.xdist_group("nbgrader")
def test_another_user_works_with_an_installation_that_nobody_can_write_to(tmp_path: Path):
    # Invariant: all that a student calls works where everything but one's own folders is read-only.
    exchange, home = tmp_path / "exchange", tmp_path / "home"
    for folder in (exchange, home):
        folder.mkdir()
    exchange.chmod(0o777)
    python = [sys.executable, "-m"]
    course, nbgrader = [*python, "workbook.cli"], [*python, "nbgrader"]
    work = tmp_path / "work"
    commands = [
        [*course, "start", str(work)],
        [*course, "doctor"],
        [*course, "progress"],
        [*course, "check", NOTEBOOK, "--unit", UNIT],
        [*nbgrader, "submit", UNIT],
    ]
    inbound = exchange / "distributed_training" / "inbound"
    (exchange / "distributed_training" / "outbound" / UNIT).mkdir(parents=True)
    inbound.mkdir()
    inbound.chmod(0o333)
    statuses = {}
    for words in commands:
        statuses[words[3]] = as_another_user(words, tmp_path, work if work.exists() else home)
    assert {name: done.returncode for name, done in statuses.items()} == {
        "start": 0,
        "doctor": 0,
        "progress": 0,
        "check": 1,  # Nothing is solved yet.
        "submit": 0,
    }, "\n".join(done.stderr for done in statuses.values())
    assert [*exchange.glob(f"distributed_training/inbound/nobody+*/{UNIT}.ipynb")]


def as_another_user(words: list[str], own: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user who can write to one folder alone."""
    wall = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    # The checkout may lie in /tmp.
    wall += ["--ro-bind", str(ROOT), str(ROOT)]
    wall += ["--bind", str(own), str(own), "--unshare-user", "--uid", "65534", "--gid", "65534"]
    environment = {"HOME": str(own / "home"), "COURSE_EXCHANGE": str(own / "exchange"), "USER": "student"}
    return subprocess.run(
        [*wall, "--chdir", str(folder), *words],
        env=os.environ | environment | {"COURSE_HOME": str(own / "home" / "course")},
        capture_output=True,
        text=True,
        check=False,
    )
