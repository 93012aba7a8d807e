"""Folders in the temporary directory: none stays, whatever becomes of its process."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from course_lib.scratch import scratch_folder

HOLDERS = {
    "a folder": """
import signal
from course_lib.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    signal.pause()
""",
    "a kernel's sockets": """
import os, signal
from workbook.run_notebook import OwnSocketsManager
manager = OwnSocketsManager()
print(os.path.dirname(manager.ip), flush=True)
signal.pause()
""",
}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_nothing_stays(temporary: Path) -> None:
    with scratch_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("what", HOLDERS)
def test_what_a_killed_process_left_is_swept_and_what_a_living_one_holds_stays(
    temporary: Path, what: str
) -> None:
    # Invariant: the next start removes exactly what has no process any more.
    command = [sys.executable, "-c", HOLDERS[what]]
    holders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout]
    holders[0].send_signal(signal.SIGKILL)
    holders[0].wait()
    assert all(folder.is_dir() for folder in folders)
    with scratch_folder():
        assert [folder.is_dir() for folder in folders] == [False, True]
    holders[1].kill()
    holders[1].wait()
    with scratch_folder():
        assert not any(folder.is_dir() for folder in folders)
    assert not list(temporary.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_another_user_s_folder_is_in_nobody_s_way(temporary: Path) -> None:
    # Invariant: what others have put into the temporary directory neither stops a grading nor is deleted.
    for name in ("course-theirs.lock", "course-theirs"):
        (temporary / name).mkdir() if name.endswith("theirs") else (temporary / name).touch()
        os.chown(temporary / name, 65534, 65534)
    (temporary / "course-link.lock").symlink_to("/etc/passwd")
    with scratch_folder():
        pass
    assert sorted(path.name for path in temporary.iterdir()) == [
        "course-link.lock",
        "course-theirs",
        "course-theirs.lock",
    ]
