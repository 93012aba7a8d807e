"""`course grade --slurm` on a real Slurm: graded by an array, collected once, whatever is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell

from course_lib.slurm.lint import Script, complaints_about
from course_lib.slurm.scripts import GRADING, Job, Refused, render
from course_lib.slurm.sites import Site, sites
from course_lib.slurm.virtual.lifecycle import Shape, VirtualCluster, missing_programs, temporary_cluster
from graders.classroom.batches import Batch, batches_in
from graders.classroom.grade_class import batches_folder
from graders.classroom.gradebook import Course
from graders.classroom.pool import Task
from graders.grading.registry import exercises
from tests.classroom import ROOT, UNIT, blank, environment, hand_in, new_course, run_here, solved
from tests.test_classroom import ALL, Scores, scores

needs_slurm = pytest.mark.skipif(
    bool(missing_programs()), reason="Slurm is not installed: apt-get install slurmctld slurmd slurm-client"
)
IMPATIENT = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from graders.classroom import job_array; job_array.ASK_SECONDS = 0.5
from workbook.cli import main; main()
"""
"""The command `course`, which asks Slurm more often than it would a site's."""


@pytest.mark.parametrize("site", list(sites().values()), ids=lambda site: site.name)
def test_every_site_accepts_the_array(site: Site) -> None:
    # Invariant: no line that the site forbids or sbatch ignores; no GPU is asked for to grade. A site
    # without arrays says what to do instead.
    job = Job(
        GRADING,
        tasks_per_node=1,
        account="project_1",
        array="0-3",
        program="-m graders.classroom.array_task /shared/b",
    )
    if "--array" in site.refused:
        with pytest.raises(Refused, match="course grade without --slurm"):
            render(job, site)
        return
    script = Script(render(job, site))
    assert not complaints_about(script, site)
    assert "gpu" not in "".join(option.name for option in script.options)
    assert 'exec python -P -m graders.classroom.array_task /shared/b "$SLURM_ARRAY_TASK_ID"' in script.text


@pytest.fixture(scope="module")
def cluster() -> Iterator[VirtualCluster]:
    """Two nodes of one core, so that each task of an array starts one judge."""
    with temporary_cluster(Shape(nodes=2, cpus=1)) as found:
        yield found


@pytest.fixture(scope="module")
def root(cluster: VirtualCluster) -> Path:
    """A course where all nodes see it. Two submissions take a while to grade."""
    root = new_course(cluster.shared / "course")
    hand_in(root, "right", solved())
    hand_in(root, "blank", blank())
    for student in ("slow", "slower"):
        notebook = solved()
        notebook.cells.insert(0, new_code_cell("import time; time.sleep(1)"))
        hand_in(root, student, notebook)
    return root


@pytest.fixture
def started(cluster: VirtualCluster, root: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `course grade --slurm` on the head node; what still runs afterwards is ended."""
    running = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", IMPATIENT, "grade", UNIT, "--slurm", "--jobs", "2", *arguments]
        variables = {**cluster.environment, **environment(), "SLURM_CONF": str(cluster.configuration)}
        process = subprocess.Popen(
            cluster.command(["env", f"--chdir={root}", *words]),
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    return err


def submitted_batch(root: Path) -> Batch:
    """The batch under way, once it has been submitted."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for batch in batches_in(batches_folder(Course(root), UNIT)):
            if batch.job:
                return batch
        time.sleep(0.05)
    raise AssertionError("nothing was submitted")


def send(number: int, word: str) -> bool:
    """Send a signal to the processes with this word in their command line, once there are any."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        told = {int(path.parent.name): _text(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
        # nsenter only waits for what it has started.
        found = [pid for pid, text in told.items() if word in text and not text.startswith("nsenter")]
        for pid in found:
            os.kill(pid, number)
        if found:
            return True
        time.sleep(0.05)
    return False


def _text(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@contextmanager
def nodes_that_take_no_job(cluster: VirtualCluster) -> Iterator[None]:
    """What runs goes on; what is submitted waits until the end of the block."""
    change = ["scontrol", "update", "NodeName=node[1-2]"]
    cluster.run([*change, "State=DRAIN", "Reason=test"], check=True)
    try:
        yield
    finally:
        cluster.run([*change, "State=RESUME"], check=True)


def wait_until_all_run(cluster: VirtualCluster, batch: Batch) -> None:
    """Until no task of the array is in the queue any more: one that stays there keeps its job under way."""
    deadline = time.monotonic() + 200
    ask = ["squeue", "--noheader", f"--jobs={batch.job}", "--states=PENDING", "--format=%i"]
    while waiting := cluster.run(ask, capture_output=True).stdout.strip():
        assert time.monotonic() < deadline, f"{waiting} did not begin"
        time.sleep(0.05)


def wait_for_another(batch: Batch) -> None:
    """Until a lost share has been submitted again, as a batch of its own."""
    deadline = time.monotonic() + 200
    # A batch has its folder before Slurm has its job.
    while sum(bool(each.job) for each in batches_in(batch.folder.parent)) < 2:
        assert time.monotonic() < deadline, "the lost share was not submitted again"
        time.sleep(0.05)
    assert len(list(batches_in(batch.folder.parent))) == 2


def wait_for_line(process: "subprocess.Popen[str]", words: str) -> None:
    """Until the process says these words."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))


def assert_complete(found: Scores) -> None:
    """Every submission has its grade, once, and none is NULL."""
    assert {student: total for student, (total, _) in found.items()} == {
        **dict.fromkeys(("right", "slow", "slower"), ALL),
        "blank": 0,
    }
    assert all(None not in each and len(each) == len(exercises(UNIT)) for _, each in found.values())


@needs_slurm
@pytest.mark.xdist_group("slurm-class")
def test_an_array_marks_the_class(root: Path, started: Callable[..., subprocess.Popen[str]]) -> None:
    # Invariant: nodes grade, one process records, and nothing of the batch is left.
    said = finished(started())
    assert "4 submissions in 2 tasks on a virtual cluster" in said
    assert "[4/4]" in said
    assert_complete(scores(root))
    assert not list(batches_in(batches_folder(Course(root), UNIT)))


@needs_slurm
@pytest.mark.xdist_group("slurm-class")
def test_whatever_is_killed_it_goes_on(
    root: Path, started: Callable[..., subprocess.Popen[str]], cluster: VirtualCluster
) -> None:
    # Invariant: a task of the array is killed: its share is submitted again. Then the process that waits is
    # killed: the array goes on, and the next run collects what it does. Every verdict is recorded, once.
    first = started("--force")
    batch = submitted_batch(root)
    assert send(signal.SIGKILL, f"graders.classroom.array_task {batch.folder} 0")
    wait_until_all_run(cluster, batch)
    with nodes_that_take_no_job(cluster):
        wait_for_another(batch)
        assert send(signal.SIGKILL, f"{IMPATIENT} grade")
        first.communicate()
        assert all(None not in each for _, each in scores(root).values())
        second = started("--force", "--jobs", "1")
        wait_for_line(second, "of an earlier run is at it")
    finished(second)
    assert_complete(scores(root))


@needs_slurm
@pytest.mark.xdist_group("slurm-class")
def test_control_c_leaves_a_job_that_can_be_cancelled(
    root: Path, started: Callable[..., subprocess.Popen[str]], cluster: VirtualCluster
) -> None:
    # Invariant: the message names the job; cancelled or not, the command without --slurm does what is left.
    process = started("--force", "--jobs", "1")
    batch = submitted_batch(root)
    time.sleep(0.5)
    assert send(signal.SIGINT, f"{IMPATIENT} grade")
    _, said = process.communicate(timeout=200)
    assert process.returncode == 130, said
    assert f"scancel {batch.job}" in said
    assert "Traceback" not in said
    cluster.run(["scancel", batch.job], check=True)
    done = run_here(root, "grade", UNIT)
    assert done.returncode == 0, done.stderr
    assert_complete(scores(root))


def test_what_has_changed_since_is_not_marked_as_if_it_had_not(tmp_path: Path) -> None:
    # Invariant: a verdict belongs to what was handed in when it was ordered.
    from graders.classroom.array_task import grade_share
    from graders.classroom.batches import new_batch
    from graders.classroom.pool import GradingFailed

    task = Task(str(tmp_path), UNIT, "ann", "a key that nothing has")
    batch = new_batch(tmp_path / "batches", [task])
    grade_share(batch, 0, 1, 1)
    outcome = batch.find(task)
    assert isinstance(outcome, GradingFailed)
    assert "have changed since the job was submitted" in str(outcome)


def test_without_slurm_it_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = new_course(tmp_path / "course")
    hand_in(root, "blank", blank())
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    done = run_here(root, "grade", UNIT, "--slurm")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "There is no sbatch here: submit from a login node of a cluster.",
    )
