"""A function under mpirun: results come back, a failure ends all ranks, a hang ends in time."""

import os
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from course_lib import BadLaunch, RankFailed, TimedOut
from course_lib.launch import mpi
from course_lib.launch.mpi import mpi_missing, mpirun
from course_lib.runtime.processes import guarded
from course_lib.scratch import scratch_folder
from graders.grading.exercise import Verdict
from graders.grading.registry import load_all
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer

needs_mpi = pytest.mark.skipif(bool(mpi_missing()), reason=mpi_missing() or "MPI is here")


def summed(comm, numbers):
    mine, total = np.array(numbers[comm.Get_rank()]), np.zeros(2, dtype=int)
    comm.Allreduce(mine, total)
    return total.tolist()


@needs_mpi
def test_every_ranks_result_comes_back():
    # The example of every course on MPI: 5 + 2 + 7 + 4 = 18 and 1 + 3 + 8 + 2 = 14, on every rank.
    assert mpirun(summed, [[5, 1], [2, 3], [7, 8], [4, 2]], ranks=4, timeout=120) == [[18, 14]] * 4


@needs_mpi
def test_runs_share_no_folder(monkeypatch, tmp_path):
    # Invariant: what Open MPI writes lies in the run's own folder and goes with it. By default runs share
    # one, which may be removed by one of them while another makes it.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def session(comm):
        return os.environ["PMIX_SERVER_TMPDIR"]

    first, second = (Path(mpirun(session, ranks=1, timeout=120)[0]).relative_to(tmp_path) for _ in range(2))
    assert first.parts[0] != second.parts[0]
    assert list(tmp_path.iterdir()) == []


@needs_mpi
def test_it_runs_where_locks_are_shut(monkeypatch, tmp_path):
    # Invariant: in the sandbox of a grading flock(2) fails with EPERM; the run does not.
    def shut(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("fcntl.flock", shut)
    with scratch_folder(str(tmp_path)) as folder:
        assert folder.is_dir()
    assert not folder.exists()


def test_a_rank_that_raises_aborts_the_others():
    # The others wait in a barrier for ever, unless they are aborted; the report has the line that raised.
    def fails(comm):
        if comm.Get_rank() == 1:
            raise ValueError("no data here")
        comm.Barrier()

    with pytest.raises(RankFailed, match=r"rank 1 .*ValueError: no data here") as failed:
        mpirun(fails, ranks=3, timeout=120)
    assert 'raise ValueError("no data here")' in failed.value.report


@needs_mpi
def test_a_hang_ends_in_time_and_leaves_no_process(monkeypatch):
    # Ranks of other launches may run beside it: these are known by a variable that they inherit.
    mark = f"COURSE_TEST_HANG={uuid.uuid4()}"
    monkeypatch.setenv(*mark.split("="))

    def hangs(comm):
        comm.recv(source=(comm.Get_rank() + 1) % comm.Get_size())

    with pytest.raises(TimedOut, match="after 2 s"):
        mpirun(hangs, ranks=2, timeout=2)
    deadline = time.monotonic() + 60
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def processes_with(variable):
    """The commands of processes that were started with this variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable.encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_bytes().decode())
    return found


STUBBORN = """#!/bin/sh
trap '' TERM
setsid sleep 987654 &
echo $! > "$PIDS"
wait
"""


def test_an_mpirun_that_does_not_end_leaves_no_rank(tmp_path, monkeypatch):
    # Invariant: ranks end even if mpirun takes no notice and they have made sessions of their own.
    (tmp_path / "mpirun").write_text(STUBBORN)
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.setattr(guarded, "_ENDING_SECONDS", 0.2)
    with pytest.raises(TimedOut):
        mpirun(summed, ranks=2, timeout=1)
    pid = int((tmp_path / "pids").read_text())
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("missing", "words"), [("mpirun", "apt-get install openmpi-bin"), ("mpi4py", "pip install")]
)
def test_what_is_missing_is_said(monkeypatch, missing, words):
    if missing == "mpirun":
        monkeypatch.setattr(mpi.shutil, "which", lambda _: None)
    else:
        monkeypatch.setattr(mpi.shutil, "which", lambda _: "/usr/bin/mpirun")
        monkeypatch.setattr(mpi.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BadLaunch, match=words):
        mpirun(summed, [], ranks=2)


def test_the_mpi_exercise_is_blocked_and_not_failed_without_mpi(monkeypatch):
    monkeypatch.setattr(mpi.shutil, "which", lambda _: None)
    exercise = load_all()["07_collectives"]["mpi_ring_all_reduce"]
    result = grade(exercise, kernel_answer(summed, exercise.name), Rng(0))
    assert {each.verdict for each in result.criteria} == {Verdict.BLOCKED}
    assert not result.mistake
    assert "There is no mpirun here" in result.criteria[0].seen
