"""Sites, rendered scripts, their lint, rank discovery: what can be proved without a Slurm."""

import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course_lib import BadLaunch, launch
from course_lib.launch import slurm as engine
from course_lib.runtime.processes.rank_environment import _set_meeting_point, join_group, rank_from_launcher
from course_lib.slurm import scripts
from course_lib.slurm.allocation import Allocation, NoAllocation
from course_lib.slurm.cost import Cost, advice, array_size, cost_of
from course_lib.slurm.environment import for_a_job, for_a_step
from course_lib.slurm.lint import Script, complaints_about
from course_lib.slurm.scripts import SCRIPTS, Job, Refused, render, render_lumi, submit
from course_lib.slurm.sites import UnknownSite, site_named, sites
from course_lib.slurm.virtual.lifecycle import ClusterFailed, Shape

GOOD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=10\n\nsrun hostname\n"
LOCAL, FRONTERA, LUMI = site_named("local"), site_named("frontera"), site_named("lumi")
ALLOCATION = Allocation("7", "tap_jupyter", "rtx", ("c1", "c2"), 8, 1, 0, 600)


def complaints(text: str, site: str = "local") -> list[str]:
    return complaints_about(Script(text), site_named(site))


# --- Lint


def test_a_good_script_has_no_complaint():
    assert complaints(GOOD) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "#SBATCH --gpus=1\n", "stands after the first command (line 5): sbatch ignores it silently"),
        (GOOD.replace("#SBATCH --nodes", "# SBATCH --nodes"), "is a plain comment for sbatch"),
        (GOOD.replace("#SBATCH --time", "#sbatch --time"), "is a plain comment for sbatch"),
        (GOOD.replace("\n", "\r\n"), "CR LF"),
        (GOOD.removeprefix("#!/bin/bash\n"), "names no interpreter"),
        (GOOD.replace("--time=10", "--time=10 --output=$WORK/x"), "sbatch expands no variables"),
        (GOOD.replace("#SBATCH --time=10\n", ""), "There is no --time"),
        (GOOD.replace("#SBATCH --nodes=2\n", ""), "There is no --nodes"),
    ],
)
def test_lines_that_sbatch_would_ignore_are_named(text: str, said: str):
    assert any(said in complaint for complaint in complaints(text)), complaints(text)


@pytest.mark.parametrize(
    ("job", "site", "said"),
    [
        (
            Job("train_ibrun", nodes=30),
            "frontera",
            "Jobs in rtx on Frontera at TACC have at most 16 nodes, not 30.",
        ),
        (Job("train_ibrun", minutes=83 * 60), "frontera", "last at most 48 h, not 83 h."),
        (Job("train_ibrun", array="0-3"), "frontera", "job arrays are not available"),
        (Job("train_ibrun", partition="normal", nodes=2), "frontera", "have at least 3 nodes, not 2."),
        (
            Job("train_ibrun", partition="nosuchqueue"),
            "vista",
            "has no partition 'nosuchqueue', .* It has gh, gh-dev, gg",
        ),
        (
            Job("train_ibrun", partition="gpu-h100", tasks_per_node=3),
            "lonestar6",
            "has 2 GPUs, and 3 tasks a node",
        ),
        (
            Job("train_srun", partition="small-g", nodes=5, account="project_1"),
            "lumi",
            "have at most 4 nodes, not 5",
        ),
    ],
    ids=["nodes", "hours", "array", "too few nodes", "partition", "tasks", "lumi"],
)
def test_what_a_site_would_refuse_is_not_rendered(job: Job, site: str, said: str):
    with pytest.raises(Refused, match=said):
        render(job, site_named(site))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--time=10", "--time=10 --mem=4G"), "rejects --mem"),
        (("--time=10", "--time=10 --gres=gpu:1"), "rejects --gres"),
        (("--time=10", "--time=10\n#SBATCH -w c1"), "deletes jobs that ask for named nodes"),
        (("--time=10", "--time=10\n#SBATCH -x c1"), "deletes jobs that exclude named nodes"),
        (("srun hostname", "mpirun -np 4 a.out"), "Say ibrun instead of mpirun"),
        (("srun hostname", "cd x && srun -N 2 hostname"), "Say ibrun instead"),
        (("srun hostname", "sbatch next.sbatch"), "no sbatch from a compute node"),
        (("/bin/bash", "/bin/sh"), "#!/bin/sh"),
    ],
)
def test_what_tacc_forbids_is_refused_with_the_reason(change: tuple[str, str], said: str):
    # Invariant: the very same line is no fault where it is allowed.
    good = GOOD.replace("srun", "ibrun")
    text = (good if "srun" not in change[0] else GOOD).replace(*change)
    assert any(said in complaint for complaint in complaints(text, "frontera"))
    assert not any(said in complaint for complaint in complaints(text, "local"))


def test_limits_of_a_partition_are_kept():
    text = GOOD.replace("--nodes=2", "--nodes=9").replace("--time=10", "--time=3-00:00:00")
    said = complaints(text.replace("srun", "ibrun"), "lonestar6")
    assert "Jobs in gpu-a100 on Lonestar6 at TACC have at most 8 nodes, not 9." in said
    assert "Jobs in gpu-a100 on Lonestar6 at TACC last at most 48 h, not 72 h." in said


def test_a_site_s_own_rules_stand_beside_those_of_its_family():
    # Invariant: Frontera's rule on arrays adds to TACC's, and holds nowhere else.
    assert {"--mem", "--array"} <= set(FRONTERA.refused)
    assert "--array" not in site_named("stampede3").refused


def test_a_partition_that_is_not_in_the_table_is_no_fault_where_no_table_is():
    assert complaints(GOOD.replace("--time=10", "--time=10 --partition=mine")) == []


# --- Rendering


def possible(script: str, site: str) -> bool:
    launcher = script.removeprefix("train_")
    return launcher not in ("srun", "mpirun", "ibrun") or (launcher == "ibrun") == (
        site_named(site).launcher == "ibrun"
    )


@pytest.mark.parametrize("site", sorted(sites()))
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_for_every_site(script: str, site: str):
    # Invariant: a script is rendered without fault, or refused because the site starts ranks in another way.
    job = Job(script, nodes=1, account="project_1", units=("00_hello_ranks",))
    if not possible(script, site):
        with pytest.raises(Refused):
            render(job, site_named(site))
        return
    text = render(job, site_named(site))
    assert complaints_about(Script(text), site_named(site)) == []
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    first = Script(text).first_command
    assert all(number < first for number, line in enumerate(text.splitlines(), 1) if "#SBATCH" in line)


def test_a_look_at_gpus_is_of_one_node():
    with pytest.raises(Refused, match="looks at the GPUs of one node: leave out --nodes"):
        render(Job("gpu", nodes=2), LOCAL)
    text = render(Job("gpu", image="/images/torch.sif"), FRONTERA)
    assert "in_image python -m workbook.cli gpu --root" in text


def test_tacc_scripts_ask_for_nodes_and_start_with_ibrun():
    text = render(Job("train_ibrun", nodes=2), FRONTERA)
    assert "ibrun -n 8 -o 0" in text
    assert "--mem" not in text
    assert "srun" not in text.split("until")[0]
    assert "scontrol requeue" not in text
    one_a_node = render(Job("train_torchrun", nodes=2), FRONTERA)
    assert "TACC_TASKS_PER_NODE=1 ibrun -n 2 -o 0" in one_a_node


def test_lumi_scripts_bind_ranks_to_their_gpus():
    with pytest.raises(Refused, match="LUMI needs a project"):
        render(Job("train_srun"), LUMI)
    text = render(Job("train_srun", account="project_1", nodes=2), LUMI)
    # The seven free cores of the group beside each die; unit 03 derives their first ones.
    masks = ",".join(hex(0b1111111 << first) for first in (49, 57, 17, 25, 1, 9, 33, 41))
    assert f"--cpu-bind=mask_cpu:{masks}" in text
    assert "export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID" in text
    assert "#SBATCH --gpus-per-node=8" in text
    assert "export NCCL_SOCKET_IFNAME=hsn" in text


@pytest.mark.parametrize(
    ("site", "partition", "tasks"),
    [("lonestar6", None, 3), ("lonestar6", "gpu-h100", 2), ("vista", None, 1), ("lumi", "small-g", 8)],
)
def test_a_node_gets_a_task_for_each_of_its_gpus(site: str, partition: str | None, tasks: int):
    job = Job("train_torchrun", partition=partition, account="project_1")
    assert f"--nproc-per-node={tasks} " in render(job, site_named(site))


def test_where_there_is_no_gpu_none_is_asked_for():
    # Invariant: neither an option for GPUs nor a binding to them on a partition of CPUs.
    text = render(Job("train_srun", account="project_1", partition="small"), LUMI)
    assert not [each for each in ("--gpus-per-node", "ROCR_VISIBLE_DEVICES", "cpu-bind") if each in text]


def test_paths_are_those_of_the_folder_in_which_a_script_is_rendered(tmp_path: Path, monkeypatch: Any):
    # Invariant: with a library that is installed elsewhere, a student's script runs the student's notebooks.
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path}/notebooks/" in render(Job("workbook", units=("u",)), LOCAL)
    assert f"--ServerApp.root_dir={tmp_path}\n" in render(Job("jupyter"), LOCAL)


def test_binding_is_only_for_whole_nodes():
    # Invariant: a map for eight ranks is not given to two.
    assert "cpu-bind" not in render(Job("train_srun", account="project_1", tasks_per_node=2), LUMI)


def test_inherited_variables_are_scrubbed():
    # Invariant: what breaks nested jobs is unset in every script before anything is started.
    for script in SCRIPTS:
        if possible(script, "local"):
            text = render(Job(script, units=("u",)), LOCAL)
            line = next(line for line in text.splitlines() if line.startswith("unset "))
            assert {"SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV", "SLURM_MEM_PER_CPU"} <= set(line.split())


def test_containers_are_an_option():
    text = render(Job("train_torchrun", image="/images/torch.sif"), FRONTERA)
    assert "apptainer exec --nv /images/torch.sif torchrun" in text
    assert "module load tacc-apptainer\n" in text
    assert "apptainer" not in render(Job("train_torchrun"), FRONTERA)


def test_lumi_s_bindings_are_loaded_before_its_images_run():
    text = render(Job("train_srun", account="project_1", image="/images/torch.sif"), LUMI)
    loaded, ran = text.index("module load lumi-aif-singularity-bindings"), text.index("singularity run")
    assert loaded < ran


def test_arrays_dependencies_parameters():
    job = Job("workbook", units=("a", "b c"), array="0-3", after=("12", "13"), parameters={"epochs": "2"})
    text = render(job, LOCAL)
    assert "#SBATCH --array=0-3" in text
    assert "#SBATCH --dependency=afterok:12:13" in text
    assert "for unit in a 'b c'; do" in text
    assert "-p epochs 2" in text


def test_lumi_course_module_and_resources():
    values = {
        "name": "workbook",
        "directory": "/projappl/project_1/www_lumi_modules",
        "environment": "/projappl/project_1/env",
        "repository": "https://example.org/workbook.git",
        "reference": "main",
        "notebook": "notebooks/a.ipynb",
        "cores": 7,
        "time": "04:00:00",
        "partition": "small-g",
        "memory": "60GB",
        "gpus": 1,
        "reservation": "",
    }
    module = render_lumi("course.lua", values)
    assert "Jupyter" in module
    assert 'setenv("_COURSE_GIT_REPO", "https://example.org/workbook.git")' in module
    assert 'prepend_path("PATH", "/projappl/project_1/env/bin")' in module
    assert 'unsetenv("SLURM_EXPORT_ENV")' in module
    resources = render_lumi("course-resources.yml", values)
    assert 'partition: "small-g"' in resources
    assert "gpus: 1" in resources
    assert "reservation" not in resources


def test_submitting_from_a_compute_node_is_refused_at_tacc(tmp_path: Path, monkeypatch: Any):
    # Invariant: refused before sbatch is asked, with what to do instead.
    path = tmp_path / "job.sbatch"
    path.write_text(render(Job("train_ibrun"), FRONTERA))
    monkeypatch.setattr(scripts, "present_allocation", lambda: ALLOCATION)
    monkeypatch.setattr(subprocess, "run", None)
    with pytest.raises(Refused, match="allows no sbatch from a compute node, and this runs in job 7"):
        submit(path, FRONTERA)


def test_unknown_sites_and_scripts_are_sentences():
    with pytest.raises(UnknownSite, match="There is no site mars"):
        site_named("mars")
    with pytest.raises(Refused, match="There is no script nothing"):
        render(Job("nothing"), LOCAL)
    with pytest.raises(ClusterFailed, match="1 to 200 nodes"):
        Shape(nodes=0)


# --- Environment


OUTER = {
    "PATH": "/bin",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "1",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_MEM_PER_CPU": "1000",
    "SBATCH_ACCOUNT": "x",
    "RANK": "0",
    "PMI_RANK": "0",
}


def test_a_step_knows_its_job_and_nothing_of_the_outer_step():
    assert for_a_step(OUTER) == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "7"}


def test_a_job_knows_nothing_of_the_outer_job():
    assert for_a_job(OUTER) == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf"}


# --- Ranks


@pytest.fixture
def environment(monkeypatch: Any) -> dict[str, str]:
    """An empty environment of this process."""
    held: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", held)
    return held


TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
STEP = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
}


@pytest.mark.parametrize(
    ("given", "launcher"),
    [
        (dict(zip(TORCHRUN, "58141", strict=True)), "torchrun"),
        (STEP, "srun"),
        (
            {
                f"OMPI_COMM_WORLD_{name}": value
                for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "5814", strict=True)
            },
            "Open MPI",
        ),
        (
            {
                f"HOROVOD_{name}": value
                for name, value in zip(
                    ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK"), "58141", strict=True
                )
            },
            "Horovod",
        ),
        (
            {
                f"MV2_COMM_WORLD_{name}": value
                for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "5814", strict=True)
            },
            "MVAPICH2",
        ),
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "SLURM_JOB_NUM_NODES": "2"}, "PMI"),
    ],
)
def test_every_launcher_s_rank_becomes_torchrun_s(
    environment: dict[str, str], given: dict[str, str], launcher: str
):
    # Invariant: rank 5 of 8 on 2 nodes is the second rank of node 1, whoever says so.
    environment.update(given)
    info = rank_from_launcher()
    assert (info.launcher, info.rank, info.ranks, info.nodes) == (launcher, 5, 8, 2)
    assert [environment[name] for name in TORCHRUN] == ["5", "8", "1", "4", "1"]


def test_the_innermost_launcher_counts(environment: dict[str, str]):
    # Invariant: mpirun in a batch script, and torchrun under srun, are not mistaken for Slurm's own ranks.
    environment.update(STEP | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"})
    assert rank_from_launcher().launcher == "Open MPI"


def test_a_batch_script_itself_is_no_rank(environment: dict[str, str]):
    # Invariant: SLURM_PROCID=0 and SLURM_NTASKS=4 stand in the environment of the script, which is alone.
    environment.update({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"})
    assert rank_from_launcher().ranks == 1


def test_contradicting_variables_are_a_sentence(environment: dict[str, str]):
    environment.update({"RANK": "4", "WORLD_SIZE": "4"})
    with pytest.raises(BadLaunch, match="RANK is 4 and WORLD_SIZE is 4"):
        rank_from_launcher()


def test_loopback_for_two_nodes_is_refused(environment: dict[str, str]):
    environment.update(STEP | {"MASTER_ADDR": "127.0.0.1"})
    with pytest.raises(BadLaunch, match=r"would wait for ever\. Set MASTER_ADDR"):
        join_group()


OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}


def meeting_port(environment: dict[str, str], given: dict[str, str]) -> str:
    environment.clear()
    environment.update(given)
    _set_meeting_point(rank_from_launcher())
    return environment["MASTER_PORT"]


@pytest.mark.parametrize(
    ("launcher", "rank", "run", "other"),
    [
        (OPEN_MPI, "OMPI_COMM_WORLD_RANK", {"PMIX_NAMESPACE": "11"}, {"PMIX_NAMESPACE": "12"}),
        (
            {"HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "4"},
            "HOROVOD_RANK",
            {"HOROVOD_GLOO_RENDEZVOUS_PORT": "11"},
            {"HOROVOD_GLOO_RENDEZVOUS_PORT": "12"},
        ),
        (
            STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": "7"},
            "SLURM_PROCID",
            {"SLURM_STEP_ID": "0"},
            {"SLURM_STEP_ID": "1"},
        ),
    ],
    ids=["Open MPI", "Horovod", "srun"],
)
def test_two_runs_on_a_machine_do_not_meet(
    environment: dict[str, str],
    launcher: dict[str, str],
    rank: str,
    run: dict[str, str],
    other: dict[str, str],
):
    # Invariant: the ranks of a run agree on a port without a word, and two runs have different ones.
    ports = [meeting_port(environment, launcher | run | {rank: str(number)}) for number in range(4)]
    assert len(set(ports)) == 1
    assert meeting_port(environment, launcher | other | {rank: "0"}) != ports[0]


def test_a_rank_alone_takes_a_free_port(environment: dict[str, str]):
    with socket.create_server(("localhost", int(meeting_port(environment, {})))):
        assert meeting_port(environment, {}) != meeting_port(environment, {})


# --- The engine's sentences


def no_allocation() -> Allocation:
    raise NoAllocation("this process runs in no Slurm job")


def test_without_an_allocation_the_site_s_way_to_get_one_is_told(monkeypatch: Any):
    monkeypatch.setattr(engine, "present_allocation", no_allocation)
    monkeypatch.setattr(engine, "site_here", lambda: FRONTERA)
    with pytest.raises(BadLaunch, match=r"From the TACC Analysis Portal: choose 2 nodes and 8 tasks\."):
        launch(print, on="slurm")


def test_tacc_s_step_is_started_by_ibrun(monkeypatch: Any):
    monkeypatch.setattr(engine, "present_allocation", lambda: ALLOCATION)
    ranks, cluster = engine.place(None)
    assert (ranks, cluster.nodes, cluster.devices_per_node) == (8, 2, 4)
    request: Any = replace(
        engine.LaunchRequest(print, (), 8, cluster, 1.0, 0, None),
    )
    assert engine._command(request, ALLOCATION, FRONTERA, ["x"]) == ["ibrun", "-n", "8", "-o", "0", "x"]
    assert engine._placement(request, FRONTERA) == {"TACC_TASKS_PER_NODE": "4"}


@pytest.mark.parametrize(
    ("job", "site", "said"),
    [
        (
            Job("train_srun", account="project_1", nodes=2, minutes=90),
            LUMI,
            "At most 2 nodes x 90 minutes = 3 node-hours, 1440 GPU-minutes. "
            "LUMI charges 12 GPU-hours for this.",
        ),
        (
            Job("train_ibrun", nodes=4, minutes=30),
            FRONTERA,
            "At most 4 nodes x 30 minutes = 2 node-hours, 480 GPU-minutes. "
            "Frontera at TACC charges 6 SUs for this.",
        ),
        (Job("train_srun", minutes=60), LOCAL, "At most 1 node x 60 minutes = 1 node-hour."),
        (
            Job("workbook", units=("u",), array="0-7%2", minutes=15),
            site_named("aces"),
            "At most 8 jobs x 1 node x 15 minutes = 2 node-hours, 240 GPU-minutes.",
        ),
    ],
    ids=["lumi", "tacc", "no GPUs", "an array"],
)
def test_what_a_script_costs_is_known_before_it_is_submitted(job, site, said):
    cost = cost_of(Script(render(job, site)), site)
    assert cost is not None
    assert cost.sentence(site) == said


def cost_at(site: str, partition: str, *options: str) -> Cost:
    lines = ["--nodes=1", f"--partition={partition}", *options]
    cost = cost_of(
        Script("\n".join(["#!/bin/bash", *(f"#SBATCH {each}" for each in lines)])), site_named(site)
    )
    assert cost is not None
    return cost


@pytest.mark.parametrize(
    ("site", "partition", "options", "charge"),
    [
        # Forty people for four hours: what the wrong queue costs a class.
        ("lonestar6", "gpu-a100", ["--time=04:00:00", "--array=1-40"], "480 SUs"),
        ("lonestar6", "vm-small", ["--time=04:00:00", "--array=1-40"], "22.88 SUs"),
        # TACC's own example: 2 nodes in rtx for a minute, charged as a quarter of an hour.
        ("frontera", "rtx", ["--nodes=2", "--time=1"], "1.5 SUs"),
        # LUMI's own examples: 4 whole nodes, 2 dies, 16 whole nodes, 4 cores.
        ("lumi", "standard-g", ["--nodes=4", "--time=24:00:00"], "384 GPU-hours"),
        ("lumi", "small-g", ["--gpus-per-node=2", "--time=24:00:00"], "24 GPU-hours"),
        ("lumi", "standard", ["--nodes=16", "--time=12:00:00"], "24576 CPU-core-hours"),
        ("lumi", "small", ["--cpus-per-task=4", "--time=24:00:00"], "96 CPU-core-hours"),
        ("aces", "gpu", ["--time=04:00:00"], ""),
    ],
)
def test_charges_are_those_of_the_guides(site: str, partition: str, options: list[str], charge: str):
    assert cost_at(site, partition, *options).charge(site_named(site)) == charge


def test_where_cpus_would_do_it_is_said():
    lonestar = site_named("lonestar6")
    assert advice(cost_at("lonestar6", "gpu-a100", "--time=04:00:00"), lonestar) == (
        "Units whose ranks are simulated or processes of one machine need no GPU: "
        "--partition vm-small would do, for 0.57 SUs instead of 12 SUs."
    )
    # Two nodes are too many for it.
    assert "--partition development" in advice(
        cost_at("lonestar6", "gpu-a100", "--time=60", "--nodes=2"), lonestar
    )
    assert advice(cost_at("lonestar6", "vm-small", "--time=60"), lonestar) == ""
    assert advice(cost_at("local", "main", "--time=60"), LOCAL) == ""


@pytest.mark.parametrize(
    ("job", "no_gpu"),
    [
        (Job("workbook", units=("u",)), True),
        (Job("workbook", units=("u",), parameters={"on": "processes"}), True),
        (Job("workbook", units=("u",), parameters={"on": "slurm"}), False),
        (Job("jupyter"), True),
        (Job("jupyter", nodes=2), False),
        (Job("train_srun"), False),
    ],
)
def test_which_jobs_need_no_gpu(job: Job, no_gpu: bool):
    assert job.needs_no_gpu is no_gpu


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("0", 1), ("0-3", 4), ("1,3,5-7", 5), ("0-15:4", 4), ("0-9%3", 10), ("0-3,2-5", 6), ("$N", 1)],
)
def test_how_many_tasks_an_array_has(text, tasks):
    assert array_size(text) == tasks


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (["--gpus=8"], 8),
        (["-G h100:2"], 2),
        (["--gpus-per-node=a100:4"], 8),
        (["--gres=gpu:2"], 4),
        (["--gres=gpu"], 2),
        (["--gres=tmpdisk:100"], 0),
        ([], 0),
    ],
)
def test_gpus_are_counted_however_they_are_asked_for(options, gpus):
    lines = ["#!/bin/bash", *(f"#SBATCH {each}" for each in ["--nodes=2", "--time=10", *options]), "true"]
    cost = cost_of(Script("\n".join(lines)), LOCAL)
    assert cost is not None
    assert cost.gpus == gpus
    assert cost.gpu_minutes == 10 * gpus


def test_without_a_time_or_nodes_there_is_no_cost():
    assert cost_of(Script("#!/bin/bash\n#SBATCH --nodes=2\ntrue"), LOCAL) is None
    assert cost_of(Script("#!/bin/bash\n#SBATCH --time=10\ntrue"), LOCAL) is None
