"""Unit 03, nodes: what its graders draw is what real tools print; submitted scripts stay in a sandbox."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_lib.cluster import numa
from course_lib.figures.pictures import binding_picture, cluster_picture, network_hops, placement_picture
from course_lib.launch.mpi import mpi_missing, mpirun
from course_lib.slurm.virtual import sandbox
from course_lib.slurm.virtual.lifecycle import ClusterFailed, Shape, VirtualCluster, missing_programs
from graders.grading.exercise import Verdict
from graders.grading.registry import exercises
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer
from graders.units.unit_03 import batch_job, launchers
from graders.units.unit_03.batch_job import JobReport, job_reports, new_trial
from graders.units.unit_03.expand_hostlist import expand_hostlist, expanded, one_list
from graders.units.unit_03.topologies import DGX_A100, LUMI_G
from tests.answers import right_answers

# The worker whose graders have started a cluster.
pytestmark = pytest.mark.xdist_group("batch scripts")

with_slurm = pytest.mark.skipif(
    bool(missing_programs()) or not sandbox.sandbox_is_possible(),
    reason="needs Slurm and a working bubblewrap: apt-get install slurmctld slurmd slurm-client bubblewrap",
)
BATCH_SCRIPTS = [proof.answer for proof in right_answers("03_multi_node") if proof.exercise == "batch_script"]


def head(*words: str) -> str:
    """What a command prints on the graders' cluster."""
    done = batch_job._cluster(os.getpid()).run(words, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def report_of(*lines: str) -> JobReport:
    """What becomes of a script with these lines, on two nodes."""
    options = ["#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=2", "#SBATCH --time=5"]
    return job_reports([("\n".join(["#!/bin/bash", *options, *lines, ""]), new_trial([], 0))])[0]


# --- What is drawn is what real tools print


@with_slurm
def test_host_lists_are_slurms_own():
    # Invariant: Slurm itself expands what the graders draw into the hosts that they expect, in their order.
    cases = expand_hostlist.grade.judged.space.cases  # type: ignore[attr-defined]
    texts = [text for case in cases for text in one_list(Rng(case.number), case.features) if text]
    script = 'for text in "$@"; do scontrol show hostnames "$text"; echo; done'
    said = head("bash", "-c", script, "bash", *texts)
    assert [part.split() for part in said.split("\n\n")[:-1]] == list(map(expanded, texts))


def as_recorded(printed: str, made: launchers.Environment) -> dict[str, str]:
    """Of an environment that was printed, the variables that a grader makes up."""
    found = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    return {name: found[name] for name in made}


OWN = {
    *("SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"),
    *("SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT", "OMPI_ARGV", "OMPI_COMMAND", "PMIX_NAMESPACE"),
}
"""What says nothing of ranks, and is there."""


@with_slurm
def test_environments_of_srun_and_of_a_batch_script_are_slurms_own():
    # Invariant: names and values are those of a real step, and of the script that starts it.
    result = report_of(
        "env > batch",
        "srun --distribution=block bash -c 'env > block-$SLURM_PROCID'",
        "srun --distribution=cyclic bash -c 'env > cyclic-$SLURM_PROCID'",
        f"cp -r $PWD {batch_job._directory()}/shared/recorded",
    )
    assert result.state == "COMPLETED", result.output
    folder = f"{batch_job._directory()}/shared/recorded"
    seats = {"block": launchers.seats_in_blocks(2, 2), "cyclic": launchers.seats_dealt(2, 2)}
    made = launchers.batch_script(seats["block"][0])
    for name, value in as_recorded(head("cat", f"{folder}/batch"), made).items():
        assert name in OWN or value == made[name], name
    for kind, places in seats.items():
        for seat in places:
            step = "1" if kind == "cyclic" else "0"
            made = {**launchers.srun(seat), "SLURM_STEP_ID": step, "SLURM_STEPID": step}
            for name, value in as_recorded(head("cat", f"{folder}/{kind}-{seat.rank}"), made).items():
                assert name in OWN or value == made[name], (name, seat)


def environment_of_rank(_comm: object) -> dict[str, str]:
    return dict(os.environ)


@pytest.mark.skipif(bool(mpi_missing()), reason=mpi_missing() or "-")
def test_environments_of_mpirun_are_open_mpis_own():
    for seat, found in zip(
        launchers.seats_in_blocks(1, 2), mpirun(environment_of_rank, ranks=2), strict=True
    ):
        made = launchers.mpirun(seat)
        # All slots of the allocation: here the two of mpirun's ranks, in the grader one that is free as well.
        assert found.pop("OMPI_UNIVERSE_SIZE") == "2"
        assert made.pop("OMPI_UNIVERSE_SIZE") == "3"
        assert {
            name: made[name] if name in OWN else found[name] for name in made.keys() & found.keys()
        } == made


def without_open_mpi(env: dict[str, str]) -> dict[str, int]:
    """Right, but that it fails where mpirun has started it."""
    for names in (
        ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE"),
        ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK", "HOROVOD_SIZE"),
    ):
        if names[0] in env:
            break
    else:
        if "SLURM_STEP_ID" not in env and "OMPI_COMM_WORLD_RANK" not in env:
            return {"rank": 0, "local_rank": 0, "node_rank": 0, "world_size": 1}
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS")
    return dict(
        zip(("rank", "local_rank", "node_rank", "world_size"), (int(env[n]) for n in names), strict=True)
    )


def test_an_error_in_one_case_costs_the_row_of_this_case():
    # Invariant: rows that do not need the one in which an answer has raised are judged all the same.
    exercise = exercises("03_multi_node")["rank_from_environment"]
    result = grade(exercise, kernel_answer(without_open_mpi, exercise.name), Rng(1))
    verdicts = {each.criterion.name: each.verdict for each in result.criteria}
    assert verdicts["mpirun"] is Verdict.FAILED
    seen = {each.criterion.name: each.seen for each in result.criteria}
    assert "under mpirun: KeyError: 'SLURM_PROCID'" in seen["mpirun"]
    assert verdicts.keys() - {name for name, verdict in verdicts.items() if verdict is Verdict.PASSED} == {
        "mpirun",
        "one launcher inside another",
    }


def test_cores_of_real_machines():
    # Invariant: LUMI's own documentation gives this map; a DGX A100's second threads are no cores.
    assert LUMI_G.expected == [49, 57, 17, 25, 1, 9, 33, 41]
    told = LUMI_G.data
    assert [cpu for cpu in range(64) if cpu not in told["allowed"]] == list(range(0, 64, 8))
    assert told["cpus_of_numa"][3] == [*range(48, 64), *range(112, 128)]
    assert DGX_A100.expected == [48, 56, 16, 24, 112, 120, 80, 88]
    assert DGX_A100.data["cpus_of_numa"][3] == [*range(48, 64), *range(176, 192)]


# --- A submitted script


@with_slurm
def test_a_script_sees_nothing_of_whoever_grades_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Invariant: no file, no variable, no network, no right, for the script and for what it makes Slurm run.
    secret = tmp_path / "gradebook.db"
    secret.write_text("the secret")
    monkeypatch.setenv("COURSE_PASSWORD", "the secret")
    library = Path(batch_job.__file__)
    result = report_of(
        f"for path in {secret} {library} {Path.home()}/.bashrc; do test -e $path && echo SEEN $path; done",
        "env | grep -i password && echo SEEN the environment",
        "for path in /proc/sys/kernel/core_pattern /usr/bin/env /etc/passwd $SLURM_CONF; do",
        "    test -w $path && echo WRITABLE $path",
        "done",
        "grep -E 'Cap(Eff|Prm|Inh|Amb):\\s*0*[1-9a-f]' /proc/self/status && echo CAPABLE",
        f"test $(id -u) = {os.getuid()} && test {os.getuid()} = 0 && echo ROOT",
        "ip route | grep default && echo ROUTE",
        f"printf '#!/bin/bash\\ntest -e {secret} && touch $PWD/escaped\\n' > trigger && chmod +x trigger",
        "strigger --set --node --down --program=$PWD/trigger",
        "scontrol update NodeName=node3 State=DOWN Reason=test; sleep 1; ls",
        "scontrol update NodeName=node3 State=RESUME",
        "echo the end",
    )
    assert "the end" in result.output
    for word in ("SEEN", "WRITABLE", "CAPABLE", "ROOT", "ROUTE", "escaped", "the secret"):
        assert word not in result.output, result.output


@with_slurm
def test_what_is_refused_and_what_hangs_are_told(monkeypatch: pytest.MonkeyPatch):
    # Invariant: Slurm's own words for a job that it refuses; one that does not end is cancelled.
    assert "node" in report_of("#SBATCH --nodes=9", "true").refused.lower()
    monkeypatch.setattr(batch_job, "JOB_SECONDS", 1.0)
    assert report_of("sleep 300").state in ("CANCELLED", "COMPLETING", "RUNNING", "FAILED")
    deadline = time.monotonic() + 120
    while head("squeue", "--noheader") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert head("squeue", "--noheader") == ""


@with_slurm
def test_the_cluster_ends_with_its_process():
    # Invariant: a process that has graded leaves no daemon and no folder behind, however it ends.
    code = (
        "import os; from graders.units.unit_03 import batch_job; "
        "print(batch_job._directory(), flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip())
    deadline = time.monotonic() + 60
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists(), done.stderr


def test_without_slurm_a_script_is_read_and_the_rest_is_blocked(monkeypatch: pytest.MonkeyPatch):
    # Invariant: blocked is not failed, and the sentence says what to install.
    monkeypatch.setattr(batch_job, "missing_programs", lambda: ["slurmctld"])
    batch_job._cluster.cache_clear()
    exercise = exercises("03_multi_node")["batch_script"]
    try:
        result = grade(exercise, kernel_answer(BATCH_SCRIPTS[0], exercise.name), Rng(1))
    finally:
        batch_job._cluster.cache_clear()
    first, *others = result.criteria
    assert first.verdict is Verdict.PASSED
    assert {each.verdict for each in others} == {Verdict.BLOCKED}
    assert "apt-get install slurmctld" in others[0].seen


@with_slurm
def test_a_cluster_that_cannot_be_sandboxed_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandbox, "sandbox_is_possible", lambda: False)
    cluster = VirtualCluster(tmp_path / "c")
    with pytest.raises(ClusterFailed, match="apt-get install bubblewrap"):
        cluster.start(Shape(sandboxed=True), os.getpid())
    assert not cluster.directory.exists()


# --- Pictures and memory


def test_connections_that_lead_over_the_network():
    # Invariant: in blocks one a node, like cards all of them; within one node none.
    assert network_hops([0, 0, 0, 0, 1, 1, 1, 1]) == 2
    assert network_hops([0, 1] * 4) == 8
    assert network_hops([0] * 4) == 0
    assert "2 lead from one node to another" in placement_picture([0, 0, 1, 1]).alt


def test_pictures_tell_in_words_what_they_show():
    cores = [range(16), range(16, 32)]
    assert "1 of 2 ranks sit beside their GPU" in binding_picture([1, 0], cores, [17, 18]).alt
    assert "here 2 with 4 GPUs each" in cluster_picture(2, 4).alt
    with pytest.raises(ValueError, match="has room for 4 nodes of 4 GPUs, not for 9 of 4"):
        cluster_picture(9)
    with pytest.raises(ValueError, match="has room for 32 ranks on 4 nodes"):
        placement_picture([0, 9])
    with pytest.raises(ValueError, match="has room for 4 NUMA nodes"):
        binding_picture([0], [range(99)], [1])


LSCPU = """CPU(s):                  8
Thread(s) per core:      2
NUMA node0 CPU(s):       0,2,4,6
NUMA node1 CPU(s):       1,3,5,7
NUMA node2 CPU(s):
"""
ROCM = """GPU[0]\t\t: (Topology) Numa Node: 1
GPU[0]\t\t: (Topology) Numa Affinity: 1
GPU[1]\t\t: (Topology) Numa Node: 0
"""
NVIDIA = """\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tSYS\t1,3,5,7\t1\t\tN/A
GPU1\tNV12\t X \tSYS\t0,2,4,6\t0\t\tN/A
NIC0\tSYS\tSYS\t X
"""


@pytest.mark.parametrize("tool", [ROCM, NVIDIA])
@pytest.mark.parametrize(("status", "allowed"), [("", None), ("Cpus_allowed_list:\t2-4,7\n", [2, 3, 4, 7])])
def test_a_topology_is_read_from_either_tool(tool: str, status: str, allowed: list[int] | None):
    # Invariant: both makers' tools tell of one node; more columns, network cards, GPU memory change nothing.
    assert numa.read_topology(tool + LSCPU + status) == {
        "numa_of_gpu": [1, 0],
        "cpus_of_numa": [[0, 2, 4, 6], [1, 3, 5, 7], []],
        "threads_per_core": 2,
        "allowed": allowed,
    }
