"""The engine "slurm", the batch scripts and training's faults, on a real Slurm in namespaces."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course_lib.beside import missing
from course_lib.slurm.scripts import SCRIPTS, Job, render
from course_lib.slurm.sites import site_named
from course_lib.slurm.virtual.lifecycle import (
    ClusterFailed,
    Shape,
    missing_programs,
    temporary_cluster,
)
from graders.grading.registry import exercises
from tests.elastic_faults import LIMIT_MINUTES, SIGNAL_SECONDS
from tests.slurm_jobs import PYTHON, ROOT, Jobs
from workbook.paths import Places
from workbook.release import write_source
from workbook.unit import Unit, read_unit

pytestmark = [
    pytest.mark.skipif(
        bool(missing_programs()),
        reason="Slurm is not installed: apt-get install slurmctld slurmd slurm-client",
    ),
    pytest.mark.xdist_group("slurm"),
    # Slurm runs what takes long side by side, and the first test that needs some of it waits.
    pytest.mark.timeout(1200),
]

LOCAL = site_named("local")
FAULTS = ROOT / "tests" / "elastic_faults.py"
REAL_UNIT = "00_hello_ranks"
UNDISTURBED = "train_mpirun"
LAUNCHED = {"srun": "limit", "torchrun": "sigkill", "mpirun": UNDISTURBED}
"""The training that each launcher starts: one that nothing happens to, and two that must come to the same."""
NOT_CRASHING = "--exclude=node3"
"""A job that must not be on the node that a test crashes."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """A cluster of three nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_HOME", str(tmp_path_factory.mktemp("home")))
        with temporary_cluster(Shape(nodes=3)) as cluster:
            patch.setenv("COURSE_HOME", str(cluster.shared / "home"))
            yield Jobs(cluster)


@pytest.fixture(scope="module")
def crashing(jobs: Jobs) -> str:
    """A training on node 3, submitted before everything else: Slurm takes half a minute to miss a node."""
    return jobs.submit_lines(
        "crashing",
        f"srun {PYTHON} {FAULTS} {jobs.folder}/crashing slow",
        options=["--nodelist=node3", "--ntasks=1", "--requeue", "--open-mode=append"],
    )


# --- The cluster


def test_nodes_are_machines_of_their_own(jobs: Jobs, crashing: str):
    # Invariant: own host name, own address, own loopback, own /tmp; the shared folder is the same.
    script = "hostname; hostname -i; touch /tmp/$(hostname); ls /tmp | tr '\\n' ' '; echo; ls -d $0"
    said = jobs.head("srun", NOT_CRASHING, "-N2", "--label", "bash", "-c", script, jobs.folder)
    by_task = {task: [] for task in "01"}
    for line in said.splitlines():
        by_task[line[0]].append(line[3:])
    for task, name in (("0", "node1"), ("1", "node2")):
        host, address, temporary, shared = by_task[task]
        assert (host, address) == (name, f"10.77.0.{name[-1]}")
        assert name in temporary.split()
        assert len([word for word in temporary.split() if word.startswith("node")]) == 1
        assert shared == str(jobs.folder)


def test_gpus_are_handed_out(jobs: Jobs):
    said = jobs.head("srun", NOT_CRASHING, "-N1", "--gpus-per-node=2", "printenv", "CUDA_VISIBLE_DEVICES")
    assert said.strip() == "0,1"


def test_a_second_start_and_an_unknown_node_are_sentences(jobs: Jobs):
    with pytest.raises(ClusterFailed, match=r"runs in .* already: course cluster stop"):
        jobs.cluster.start(Shape(), os.getpid())
    with pytest.raises(ClusterFailed, match=r"No node node9 is running\. The nodes are node1, node2, node3"):
        jobs.cluster.crash("node9")


def processes_of(directory: Path) -> list[str]:
    """Commands of processes that know a cluster's directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            known = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in known and path.name != str(os.getpid()):
            found.append((path / "cmdline").read_bytes().decode())
    return found


def test_nothing_is_left_when_its_user_is_killed(tmp_path: Path):
    # Invariant: the owner's end, even by SIGKILL, ends every process and removes every file.
    directory = Path(tempfile.mkdtemp(prefix="vc-")) / "c"
    program = (
        "import os, sys, time; from pathlib import Path\n"
        "from course_lib.slurm.virtual.lifecycle import *\n"
        "cluster = VirtualCluster(Path(sys.argv[1])); cluster.start(Shape(nodes=2), os.getpid())\n"
        "cluster.run(['sbatch', '--wrap', 'sleep 500', '-o', '/dev/null'])\n"
        "print('up', flush=True); time.sleep(600)"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert user.stdout is not None
    assert any(line == "up\n" for line in user.stdout)
    assert len(processes_of(directory)) > 4
    user.kill()
    user.wait()
    user.stdout.close()
    deadline = time.monotonic() + 200
    while (directory.exists() or processes_of(directory)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(directory)
    assert not directory.exists()
    directory.parent.rmdir()


def test_nodes_see_the_library_and_the_results_wherever_they_are(tmp_path: Path):
    # Invariant: a checkout and a COURSE_HOME in the temporary directory are there on the nodes, which have a
    # temporary directory of their own.
    shutil.copytree(ROOT / "course_lib", tmp_path / "checkout" / "course_lib")
    program = (
        "import sys; from course_lib.slurm.virtual.lifecycle import Shape, temporary_cluster\n"
        "look = 'import course_lib; from course_lib.home import course_home; '\n"
        "look += 'print(course_lib.__file__, *course_home().iterdir())'\n"
        "with temporary_cluster(Shape(nodes=1)) as cluster:\n"
        "    done = cluster.run(['srun', sys.executable, '-P', '-c', look], capture_output=True)\n"
        "print(done.stdout, done.stderr)"
    )
    (tmp_path / "home" / "mine").mkdir(parents=True)
    places = {"PYTHONPATH": str(tmp_path / "checkout"), "COURSE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(
        command, env=os.environ | places, cwd="/", capture_output=True, text=True, check=False
    )
    seen = [str(tmp_path / "checkout" / "course_lib" / "__init__.py"), str(tmp_path / "home" / "mine")]
    assert done.stdout.split() == seen, done.stdout + done.stderr


def test_the_command_starts_and_ends_a_cluster():
    # Invariant: every order of `course cluster` does what it says, what it runs has its own exit status, and
    # nothing is left when it has stopped.
    directory = Path(tempfile.mkdtemp(prefix="vc-")) / "c"

    def course(order: str, *words: object) -> int:
        command = [PYTHON, "-m", "workbook.cli", "cluster", order, "--directory", directory]
        command += [str(word) for word in words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode

    assert course("start", "--nodes", 1, "--owner", os.getpid()) == 0
    assert course("run", "true") == 0
    assert course("run", "bash", "-c", "exit 7") == 7
    assert course("run", PYTHON, "-m", "workbook.cli", "slurm", "status") == 0
    assert course("crash", "node1") == 0
    assert course("run", "srun", "--immediate=1", "true") != 0
    assert course("boot", "node1") == 0
    assert course("stop") == 0
    assert not processes_of(directory)
    assert not directory.exists()
    directory.parent.rmdir()


# --- course doctor


def test_the_doctor_knows_login_and_compute_nodes(jobs: Jobs):
    doctor = f"cd {ROOT} && COLUMNS=200 {PYTHON} -m workbook.cli doctor"
    on_head = jobs.head("bash", "-c", doctor)
    assert "a virtual cluster on this machine" in on_head
    assert "a login node" in on_head
    assert "salloc --nodes=2" in on_head
    options = (NOT_CRASHING, "-N2", "--ntasks-per-node=2", "--time=7")
    in_job = jobs.head("salloc", "--quiet", *options, "srun", "-N1", "-n1", "bash", "-c", doctor)
    assert "a compute node of this job" in in_job
    assert "2 nodes, 4 tasks" in in_job
    assert re.search("Time left +0 h [67] min", in_job)


# --- Batch scripts


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name != "train_ibrun"])
def test_slurm_accepts_every_script(jobs: Jobs, script: str):
    # Invariant: rendering has passed the lint; sbatch would start it.
    units = ("00_hello_ranks",) if script == "workbook" else ()
    path = jobs.folder / f"accepted-{script}.sbatch"
    nodes = 1 if script == "gpu" else 2
    path.write_text(render(Job(script, nodes=nodes, units=units), LOCAL))
    done = jobs.cluster.run(["sbatch", "--test-only", path], capture_output=True)
    assert "to start at" in done.stderr
    assert done.returncode == 0


def test_slurm_refuses_what_no_node_can_run(jobs: Jobs):
    path = jobs.folder / "too-large.sbatch"
    path.write_text(render(Job("train_srun", nodes=9), LOCAL))
    done = jobs.cluster.run([PYTHON, "-m", "workbook.cli", "slurm", "submit", path], capture_output=True)
    assert done.returncode == 1
    assert "sbatch refuses it" in done.stderr


def test_jupyter_prints_its_tunnel_and_ends(jobs: Jobs):
    job = jobs.submit("jupyter", render(Job("jupyter", nodes=1), LOCAL), NOT_CRASHING)
    jobs.wait_for_text("jupyter", "is running at")
    said = jobs.output("jupyter")
    assert "ssh -N -L" in said
    assert "/lab?token=" in said
    jobs.head("scancel", job)
    jobs.wait(job, "CANCELLED")


def test_arrays_and_dependencies(jobs: Jobs):
    # Invariant: each task of an array has a folder of its own, and a job that depends on it comes later.
    text = render(Job("train_srun", array="0-1", program="-c 'print()'"), LOCAL)
    text = text.split("# All ranks meet")[0] + 'echo "$run" >>order\n'
    array = jobs.submit("array", text, NOT_CRASHING, f"--output={jobs.folder}/array-%a.out")
    late = render(Job("train_srun", after=(array,), program="-c 'print()'"), LOCAL)
    late = late.split("# All ranks meet")[0] + "echo late >>order\n"
    jobs.finished(jobs.submit("late", late, NOT_CRASHING), "late")
    *tasks, last = (jobs.folder / "order").read_text().split()
    assert sorted(tasks) == [f"runs/train_srun-{array}_0", f"runs/train_srun-{array}_1"]
    assert last == "late"


JOIN = "from course_lib.runtime.processes.rank_environment import join_group; join_group()"
"""How every program that is to train begins."""


def test_localhost_as_a_meeting_point_is_a_sentence(jobs: Jobs):
    # Invariant: nobody waits: neither in the scripts, nor in a program that is started without them.
    text = train_script(jobs, "srun")
    job = jobs.submit("localhost", text, NOT_CRASHING, "--export=ALL,MASTER_ADDR=localhost")
    assert jobs.wait(job) == "FAILED"
    assert "MASTER_ADDR is localhost, which on every node means that node itself" in jobs.output("localhost")
    bare = jobs.submit_lines(
        "bare",
        "export MASTER_ADDR=localhost",
        f"srun -N2 -n2 {PYTHON} -c '{JOIN}'",
        options=["--nodes=2", NOT_CRASHING],
    )
    assert jobs.wait(bare) == "FAILED"
    assert "those away from rank 0 would wait for ever" in jobs.output("bare")


def test_outside_of_an_allocation_a_sentence_says_what_to_request(jobs: Jobs):
    program = (
        "from course_lib import launch, BadLaunch\n"
        "try: launch(print, on='slurm')\n"
        "except BadLaunch as error: print(error)"
    )
    said = jobs.head(PYTHON, "-c", program)
    assert "this process runs in no Slurm job" in said
    assert "salloc --nodes=2 --ntasks-per-node=2 --time=01:00:00 --partition=main" in said


def test_a_full_disk_is_a_sentence_and_spoils_nothing(jobs: Jobs):
    # Invariant: the checkpoint before is intact and is what the next run begins with.
    disk = jobs.folder / "disk"
    disk.mkdir()
    jobs.head("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk)
    try:
        train = [PYTHON, "-m", "course_lib.training.elastic", "--folder", disk, "--save-every", "4"]
        full = jobs.cluster.run([*train, "--epochs", "1"], capture_output=True)
        assert full.returncode == 1, full.stdout
        assert "The checkpoint could not be written" in full.stderr
        assert "0.0 MB are free on its disk" in full.stderr
        assert "is intact" in full.stderr
    finally:
        jobs.head("umount", disk)


# --- What takes long


IBRUN = """#!/bin/bash
# Stands in for TACC's ibrun, which is a wrapper round an MPI's own launcher, too.
[ "$1" = -n ] && [ "$3" = -o ] || exit 9
exec mpirun -np "$2" --map-by "ppr:$TACC_TASKS_PER_NODE:node" --bind-to none -x PATH -x PYTHONPATH \\
    -x MASTER_ADDR -x MASTER_PORT -x TORCH_CPP_LOG_LEVEL "${@:5}"
"""


WHO = "-c 'from course_lib.runtime.processes import rank_environment as r; print(r.rank_from_launcher())'"
"""A program that says which rank it is. What ranks of mpirun then do, those of ibrun do, too."""


def train_script(jobs: Jobs, launcher: str, program: str = "") -> str:
    """The script train_LAUNCHER, for a short training on 2 nodes or another program."""
    program = program or '-m course_lib.training.elastic --epochs 1 --save-every 4 --folder "$run"'
    name = f"train_{launcher}"
    site = replace(LOCAL, launcher=launcher) if launcher == "ibrun" else LOCAL
    return render(short_job(name, run=str(jobs.folder / name), program=program), site)


def short_job(script: str, **options: Any) -> Job:
    """One rank on each of two nodes; tests of the engine have more on a node."""
    return Job(script, nodes=2, tasks_per_node=1, minutes=30, **options)


def real_unit() -> Unit:
    return read_unit(ROOT / "solutions" / f"{REAL_UNIT}.py")


@pytest.fixture(scope="module")
def submitted(jobs: Jobs, crashing: str, module_rng: random.Random) -> dict[str, str]:
    """The jobs that take long, submitted at once: four of them find room at the same time."""
    found = {
        "limit": submit_limit(jobs),
        "workbook": submit_workbook(jobs),
        "scenarios": submit_scenarios(jobs),
    }
    tools = jobs.folder / "bin"
    tools.mkdir()
    (tools / "ibrun").write_text(IBRUN)
    (tools / "ibrun").chmod(0o755)
    for launcher, program in (("mpirun", ""), ("ibrun", WHO)):
        text = train_script(jobs, launcher, program).replace("export PATH=", f"export PATH={tools}:", 1)
        found[f"train_{launcher}"] = jobs.submit(f"train_{launcher}", text, NOT_CRASHING)
    if not missing("horovod"):
        found["train_horovod"] = submit_horovod(jobs)
    found["sigkill"] = submit_sigkill(jobs, step=module_rng.randint(1, 11))
    found["worlds"] = submit_worlds(jobs, after=found[UNDISTURBED])
    return found


def submit_scenarios(jobs: Jobs) -> str:
    """The launches of slurm_scenarios, made in one allocation of 2 nodes with 2 tasks each."""
    return jobs.submit_lines(
        "scenarios",
        f"cd {ROOT} && {PYTHON} -m tests.slurm_scenarios {jobs.folder}/outcomes.json",
        options=["--nodes=2", "--ntasks-per-node=2", NOT_CRASHING],
    )


def submit_workbook(jobs: Jobs) -> str:
    """A notebook that raises, and a whole unit that ends well, with parameters and one cell more."""
    notebooks = jobs.folder / "notebooks"
    where = (
        "import socket\n"
        "def where():\n"
        "    dist.barrier()\n"
        "    return socket.gethostname()\n"
        "print(launch(where, ranks=ranks, on=on).results)"
    )
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    raises = nbformat.v4.new_code_cell("raise RuntimeError('as it should')")
    bad = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Bad"), raises], metadata=kernel)
    unit = nbformat.read(write_source(real_unit(), exercises(REAL_UNIT), Places(jobs.folder)), as_version=4)
    unit.cells.append(nbformat.v4.new_code_cell(where))
    for name, notebook in (("bad", bad), (REAL_UNIT, unit)):
        (notebooks / name).mkdir(parents=True)
        nbformat.write(notebook, notebooks / name / f"{name}.ipynb")
    given = {"on": "slurm", "ranks": "2"}
    job = Job("workbook", nodes=2, minutes=30, units=("bad", REAL_UNIT), parameters=given, folder=jobs.folder)
    text = render(job, LOCAL).replace("runs/workbook-$SLURM_JOB_ID", str(jobs.folder / "executed"))
    return jobs.submit("workbook", text, NOT_CRASHING, "--ntasks-per-node=1")


def submit_sigkill(jobs: Jobs, step: int) -> str:
    """A training in which rank 1 dies after `step`."""
    folder = jobs.folder / "sigkill"
    program = f"{FAULTS} {folder} sigkill {step}"
    text = render(short_job("train_torchrun", run=str(folder), program=program), LOCAL)
    (jobs.folder / "sigkill-step").write_text(str(step))
    return jobs.submit("sigkill", text, NOT_CRASHING)


def submit_worlds(jobs: Jobs, after: str) -> str:
    """From step 8 of the undisturbed training of 2 ranks, the job `after`, a training goes on with 1."""
    before, folder = jobs.folder / UNDISTURBED, jobs.folder / "worlds"
    lines = (
        f"mkdir -p {folder}/checkpoints",
        f"cp -r {before}/checkpoints/step-00000008 {folder}/checkpoints",
        f"head -8 {before}/steps.jsonl >{folder}/steps.jsonl",
        f"srun --nodes=1 --ntasks=1 {PYTHON} {FAULTS} {folder} none",
    )
    return jobs.submit_lines(
        "worlds", *lines, options=["--nodes=2", NOT_CRASHING, f"--dependency=afterok:{after}"]
    )


def submit_horovod(jobs: Jobs) -> str:
    """The same training by horovodrun, which starts ranks on both nodes."""
    program = '-m course_lib.training.horovod_elastic --epochs 1 --save-every 4 --folder "$run"'
    folder = str(jobs.folder / "train_horovod")
    text = render(short_job("train_horovod", run=folder, program=program), LOCAL)
    return jobs.submit("train_horovod", text, NOT_CRASHING)


def submit_limit(jobs: Jobs) -> str:
    """A training that comes near its time limit."""
    job = Job(
        "train_srun",
        nodes=2,
        tasks_per_node=1,
        minutes=LIMIT_MINUTES,
        run=str(jobs.folder / "limit"),
        program=f"{FAULTS} {jobs.folder}/limit limit",
        signal_seconds=SIGNAL_SECONDS,
    )
    return jobs.submit("limit", render(job, LOCAL), NOT_CRASHING)


@pytest.fixture(scope="module")
def crashed(jobs: Jobs, crashing: str, submitted: dict[str, str]) -> str:
    """The training on node 3, which has come to step 6 when the node crashes."""
    log = jobs.folder / "crashing" / "steps.jsonl"
    deadline = time.monotonic() + 300
    while not log.exists() or len(log.read_text().splitlines()) < 6:
        assert time.monotonic() < deadline, jobs.output("crashing")
        time.sleep(0.2)
    jobs.cluster.crash("node3")
    return crashing


@pytest.fixture(scope="module")
def outcomes(jobs: Jobs, submitted: dict[str, str], crashed: str) -> dict[str, Any]:
    """What came of the launches of slurm_scenarios."""
    jobs.finished(submitted["scenarios"], "scenarios")
    held: dict[str, Any] = json.loads((jobs.folder / "outcomes.json").read_text())
    return held


@pytest.fixture(scope="module")
def trained(jobs: Jobs, submitted: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The same short training by every launcher: what each left in `finished`."""
    results = {}
    for launcher, name in LAUNCHED.items():
        said = jobs.finished(submitted[name], name)
        finished = json.loads((jobs.folder / name / "finished").read_text())
        results[launcher] = finished | {"said": said}
    return results


# --- The engine


def test_one_rank_a_task_over_all_nodes(outcomes: dict[str, Any]):
    # Invariant: as many ranks as the allocation has tasks, in blocks; results, output and events come back.
    seen = outcomes["sums"]
    assert [result["host"] for result in seen["results"]] == ["node1", "node1", "node2", "node2"]
    assert [result["sum"] for result in seen["results"]] == [10.0] * 4
    assert [result["RANK"] for result in seen["results"]] == list("0123")
    assert [result["LOCAL_RANK"] for result in seen["results"]] == list("0101")
    assert [result["GROUP_RANK"] for result in seen["results"]] == list("0011")
    assert {result["WORLD_SIZE"] + result["LOCAL_WORLD_SIZE"] for result in seen["results"]} == {"42"}
    assert {result["COLOUR"] for result in seen["results"]} == {"blue"}
    assert seen["outputs"] == [f"rank {rank} speaks\n" for rank in range(4)]
    assert {"adding", "all_reduce"} <= set(seen["calls"])
    assert seen["ordered"]
    assert seen["sent"] > 0


def test_ranks_stay_on_the_nodes_from_cell_to_cell(outcomes: dict[str, Any]):
    seen = outcomes["stays"]
    assert seen["values"] == [f"('node{node}', 10)" for node in (1, 1, 2, 2)]
    assert seen["fetched"] == 10
    assert "rank 0 waits for rank 1 to send" in seen["deadlock"]
    assert "The variables of rank 0 are gone" in seen["killed"]
    assert seen["kept"] == ["10"] * 3
    assert seen["meet"] == ["10"] * 4


def test_an_error_on_one_node_is_told_with_its_line(outcomes: dict[str, Any]):
    seen = outcomes["raises"]
    assert seen["error"] == "RankFailed"
    assert seen["message"].startswith("rank 3 failed with ValueError: no such thing")
    assert 'raise ValueError("no such thing")' in seen["message"]
    assert "at slurm_scenarios.py, line" in seen["message"]


def test_a_deadlock_across_nodes_is_diagnosed(outcomes: dict[str, Any]):
    # Invariant: it is found long before the deadline, with who waits for whom.
    seen = outcomes["deadlock"]
    assert seen["error"] == "Deadlock"
    assert "rank 0 waits for rank 2 to send" in seen["message"]
    assert seen["seconds"] < 100


def test_different_calls_on_two_nodes_are_a_mismatch(outcomes: dict[str, Any]):
    assert outcomes["mismatch"]["error"] == "CollectiveMismatch"
    assert "rank 1: all_reduce(float32[3], SUM)" in outcomes["mismatch"]["message"]


def test_a_killed_rank_is_the_root_cause(outcomes: dict[str, Any]):
    assert outcomes["killed"]["error"] == "RankFailed"
    assert outcomes["killed"]["message"].startswith("rank 2 failed with SIGKILL")


def test_the_next_launch_does_not_wait_for_torch_again(outcomes: dict[str, Any]):
    # Invariant: the tasks of one launch serve the next one of the same shape, even after a failure.
    assert outcomes["again"]["results"] == outcomes["sums"]["results"]
    assert len({(each["host"], each["task"]) for each in outcomes["sums"]["results"]}) == 4


def test_a_deadline_ends_the_step_and_only_the_step(jobs: Jobs, outcomes: dict[str, Any]):
    # Invariant: the launch's step ends with the launch, another step of the job goes on, and no process that
    # a rank has started is left on any node.
    seen = outcomes["deadline"]
    assert seen["error"] == "TimedOut"
    assert "while True" in seen["message"] or "time.sleep" in seen["message"]
    assert "course-launch" in outcomes["again"]["steps"]
    assert "bystander" in seen["steps"]
    assert "course-launch" not in seen["steps"]
    left = jobs.head("bash", "-c", "pgrep -fa '^sleep 987$' || true")
    assert left == ""


def test_more_ranks_than_tasks_is_a_sentence(outcomes: dict[str, Any]):
    seen = outcomes["too many"]
    assert seen["error"] == "BadLaunch"
    assert (
        "has 4 tasks on 2 nodes. Launch at most 4, or request more: --nodes=2 --ntasks-per-node=3."
        in (seen["message"])
    )


# --- Training, whoever starts it


def test_every_launcher_trains_the_same_model(trained: dict[str, dict[str, Any]]):
    # Invariant: two ranks are two ranks, whoever has started them: equal weights, bit for bit.
    names = {"srun": "srun", "torchrun": "torchrun", "mpirun": "Open MPI"}
    for launcher, result in trained.items():
        assert f"2 ranks on 2 nodes, started by {names[launcher]}" in result["said"]
    assert len({result["weights"] for result in trained.values()}) == 1


def test_ibrun_starts_a_rank_on_each_node(jobs: Jobs, submitted: dict[str, str]):
    # Invariant: the script asks for a rank a node, by the options of TACC's ibrun, and each knows its number.
    said = jobs.finished(submitted["train_ibrun"], "train_ibrun")
    ranks = sorted(line for line in said.splitlines() if line.startswith("RankInfo("))
    for number, line in enumerate(ranks):
        assert f"rank={number}, ranks=2, local_rank=0" in line
        assert "nodes=2, launcher='Open MPI'" in line
    assert len(ranks) == 2


@pytest.mark.skipif(bool(missing("horovod")), reason=missing("horovod") or "Horovod is here")
def test_horovodrun_trains_on_all_nodes(
    jobs: Jobs, submitted: dict[str, str], trained: dict[str, dict[str, Any]]
):
    # Invariant: horovodrun reaches the other node without ssh; each step has the samples that it has under
    # any launcher, and the same loss but for rounding.
    said = jobs.finished(submitted["train_horovod"], "train_horovod")
    assert "2 ranks on 2 nodes, started by Horovod" in said
    seen, expected = steps_of(jobs.folder / "train_horovod"), steps_of(jobs.folder / UNDISTURBED)
    assert seen.keys() == expected.keys()
    for step, record in seen.items():
        assert record["index_sum"] == expected[step]["index_sum"]
        assert record["loss"] == pytest.approx(expected[step]["loss"], rel=1e-3)


def test_papermill_in_an_allocation(jobs: Jobs, submitted: dict[str, str]):
    # Invariant: the output notebook, its page and the exit status are there, for one that raises and for a
    # whole unit of the workbook that ends well; parameters arrive; a launch uses the nodes of the job.
    assert jobs.wait(submitted["workbook"], seconds=900) == "FAILED"
    executed = jobs.folder / "executed"
    assert (executed / "bad.status").read_text() == "1\n"
    assert "as it should" in (executed / "bad.html").read_text()
    assert (executed / f"{REAL_UNIT}.status").read_text() == "0\n", jobs.output("workbook")
    assert "['node1', 'node2']" in (executed / f"{REAL_UNIT}.ipynb").read_text()
    page = (executed / f"{REAL_UNIT}.html").read_text()
    assert "node2" in page
    assert "https://cdn" not in page
    assert page.count("all points") + page.count("passed") >= len(real_unit().answers)


# --- Faults


def test_torchrun_restarts_after_a_kill(jobs: Jobs, trained: dict[str, dict[str, Any]]):
    # Invariant: a worker killed at any step costs some steps and changes no weight. That a torn checkpoint is
    # not used tests/test_elastic.py has.
    folder = jobs.folder / "sigkill"
    step = int((jobs.folder / "sigkill-step").read_text())
    newest = step // 4 * 4
    said = trained["torchrun"]["said"]
    assert (folder / "died").exists(), f"killed after step {step}"
    lines = [json.loads(line)["step"] for line in (folder / "steps.jsonl").read_text().splitlines()]
    # The first life comes to the step after the newest checkpoint, unless it ended with that.
    assert lines.count(newest) == (2 if step > newest else 1), f"killed after step {step}: {lines}"
    assert said.count(f"going on after step {newest} of 12 with 2 ranks") == (1 if newest else 0)
    assert trained["torchrun"]["weights"] == trained["mpirun"]["weights"]


def steps_of(folder: Path) -> dict[int, dict[str, Any]]:
    """What a training has logged, the last record of each step."""
    records = map(json.loads, (folder / "steps.jsonl").read_text().splitlines())
    return {record["step"]: record for record in records}


def test_the_world_shrinks_on_nodes(
    jobs: Jobs, submitted: dict[str, str], trained: dict[str, dict[str, Any]]
):
    # Invariant: with 2, then 1 rank no sample of the epoch is lost or seen twice, and the losses are those
    # of 2 ranks but for rounding. That it grows as well tests/test_elastic.py has.
    folder = jobs.folder / "worlds"
    jobs.finished(submitted["worlds"], "worlds")
    seen, expected = steps_of(folder), steps_of(jobs.folder / UNDISTURBED)
    assert [seen[step]["ranks"] for step in range(12)] == [2] * 8 + [1] * 4
    for step in range(12):
        for what in ("samples", "index_sum"):
            assert seen[step][what] == expected[step][what]
        assert seen[step]["loss"] == pytest.approx(expected[step]["loss"], abs=1e-5)
    samples = sum(record["samples"] for record in seen.values())
    assert sum(record["index_sum"] for record in seen.values()) == samples * (samples - 1) // 2


def test_time_limit_checkpoint_requeue(trained: dict[str, dict[str, Any]]):
    # Invariant: near its limit the job saves, goes back into the queue, and ends with the same weights.
    said = trained["srun"]["said"]
    assert "The time is nearly up" in said
    assert said.count("back into the queue") == 1
    assert said.count("going on after step") == 1
    assert trained["srun"]["weights"] == trained["mpirun"]["weights"]


def test_a_crashed_node_costs_no_more_than_a_few_steps(jobs: Jobs, crashed: str):
    # Invariant: Slurm misses the node, requeues the job, and training goes on from its checkpoint.
    jobs.wait(crashed, "PENDING")
    jobs.cluster.boot("node3")
    said = jobs.finished(crashed, "crashing")
    assert "going on after step 4 of 12" in said
    assert (jobs.folder / "crashing" / "finished").exists()
    lines = (jobs.folder / "crashing" / "steps.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in lines} == set(range(12))
