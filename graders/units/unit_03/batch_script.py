"""The grader of `batch_script`: the text is read first, then it is submitted."""

from collections import Counter

from course_lib.slurm.lint import Script, complaints_about
from course_lib.slurm.sites import site_named
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Rng,
    compare,
    exercise,
)
from graders.units.drivers import call
from graders.units.unit_03.batch_job import JOB_SECONDS, JobReport, Trial, job_reports, new_trial

LEAST_MINUTES, MINUTES = 10, 30
"""The shortest and the longest time limit that the exercise allows."""
EXCLUDED = "node1,node3,node5", "node1,node2"
"""Nodes that the two jobs do not get, so that a script that names the cluster's first fails; the list of the
first job's nodes has commas, that of the second's none.
"""


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "sbatch reads it",
            1,
            "The first line is #!/bin/bash; then come the lines #SBATCH --option=value, before the first "
            "command. What stands after a command, or is written otherwise, sbatch ignores without a word.",
        ),
        Criterion(
            "what is asked for",
            2,
            "--nodes, --gpus-per-node and --time; and --ntasks-per-node, for srun to know. 0:30 is "
            "30 seconds. The virtual cluster has 6 nodes of 16 cores and 8 GPUs, and no accounts.",
        ),
        Criterion(
            "one task per GPU",
            2,
            "The script itself runs once, on the first node. srun starts the command as the job's tasks, "
            "on all nodes.",
            needs=("what is asked for",),
        ),
        Criterion(
            "a meeting place",
            2,
            "On every node localhost is another machine: export MASTER_ADDR, the first host of the job's "
            "list, and MASTER_PORT, before srun. Two jobs on one node need two ports.",
            needs=("one task per GPU",),
        ),
        Criterion(
            "fails with the training",
            1,
            "A script ends with the status of its last command. If that is an echo, a failed training "
            "looks like success, and what depends on it starts.",
            needs=("one task per GPU",),
        ),
    ),
    hints=(
        "How often does Slurm run the script, and where? What has to start on all nodes, then?",
        "The options that count are four: --nodes, --ntasks-per-node, --gpus-per-node, --time.",
        'scontrol show hostnames "$SLURM_JOB_NODELIST" prints the hosts, one per line; `head -n 1`. '
        "Bash computes $((20000 + n % 10000)), and SLURM_JOB_ID is another number in each job.",
        "Let `srun` followed by the command be the last line.",
    ),
)
def batch_script(answer: Answer, rng: Rng) -> Findings:
    """It runs with a command that ends well, and with one that fails."""
    nodes, gpus = rng.choice(((2, 3), (3, 2)))
    reading = readable(answer.call(call, nodes, gpus, "python train.py --epochs 3"))
    yield "sbatch reads it", reading
    if not reading.passed:
        raise AnswerFailed(FailureKind.NOT_ASKED, 'It was not submitted: first fix "sbatch reads it".')

    words = ("--note", f'run "{rng.integer(1, 99)}" for $5', "--rate", "0.1")
    trials = [new_trial(words, status) for status in (0, 3)]
    scripts = [(str(answer.call(call, nodes, gpus, trial.command)), trial) for trial in trials]
    well, ill = job_reports(scripts, exclude=EXCLUDED)
    yield "what is asked for", asked_for(well, nodes, gpus)
    yield "one task per GPU", one_task_a_gpu(well, trials[0], nodes, gpus)
    yield "a meeting place", compare.first_failure([meeting_place(well), ports_of_their_own(well, ill)])
    right = (well.state, ill.state) == ("COMPLETED", "FAILED")
    text = f"After a training that ended well the job was {well.state}, after one that failed {ill.state}"
    yield "fails with the training", Finding(right, f"{text}; expected COMPLETED and FAILED.")


def readable(text: object) -> Finding:
    """Passes if sbatch would read all that stands in the text, as it is meant."""
    if type(text) is not str:
        return Finding(False, f"batch_script returned {text!r:.80}; expected the script's text.")
    complaints = complaints_about(Script(text), site_named("local"))
    return Finding(not complaints, " ".join(complaints[:3]) or "sbatch reads every line as meant.")


def asked_for(report: JobReport, nodes: int, gpus_per_node: int) -> Finding:
    """Passes if Slurm has given the job what was asked for, for a bounded time."""
    if report.refused:
        return Finding(False, f"sbatch took no job. It said: {report.refused:.300}")
    if report.state not in ("COMPLETED", "FAILED"):
        said = f"The job did not end by itself within {JOB_SECONDS:.0f} s: it was {report.state}."
        return Finding(False, f"{said} {_said(report)}")
    got = f"{compare.counted(report.nodes, 'node')} and {report.gpus} GPUs"
    seen = f"Slurm gave the job {got} for {report.minutes:g} minutes"
    if report.gpus_altogether:
        return Finding(False, f"{seen}, but by --gpus, the sum: how many a node gets is then Slurm's affair.")
    right = report.nodes == nodes and report.gpus == nodes * gpus_per_node
    right = right and LEAST_MINUTES <= report.minutes <= MINUTES
    expected = f"{nodes} nodes and {nodes * gpus_per_node} GPUs for {LEAST_MINUTES} to {MINUTES} minutes"
    return Finding(right, f"{seen}; expected {expected}.")


def one_task_a_gpu(report: JobReport, trial: Trial, nodes: int, gpus: int) -> Finding:
    """Passes if the command ran once for each GPU, as tasks of one srun, with its words as they were."""
    tasks = Counter(note["host"] for note in report.notes)
    where = ", ".join(f"{count} on {host}" for host, count in sorted(tasks.items())) or "none"
    if sorted(tasks.values()) != [gpus] * nodes:
        text = f"Processes of the command: {where}; expected {gpus} on each of {nodes} nodes. {_said(report)}"
        return Finding(False, text)
    ranks = sorted(str(note.get("SLURM_PROCID")) for note in report.notes)
    if ranks != sorted(map(str, range(nodes * gpus))):
        text = f"The processes' SLURM_PROCID are {', '.join(ranks)}; expected each of 0 to {nodes * gpus - 1}"
        return Finding(False, f"{text} once: one srun has to start them all.")
    words = next((note["words"] for note in report.notes if note["words"] != list(trial.words)), None)
    if words is not None:
        seen = f"The command's words were {words!r:.200}, not {list(trial.words)}."
        return Finding(False, seen, hint="command is quoted already: put it behind srun as it is.")
    return Finding(True, f"Processes of the command: {where}.")


def meeting_place(report: JobReport) -> Finding:
    """Passes if rank 0 listened at MASTER_PORT, and all others reached it at MASTER_ADDR."""
    named = {(str(note.get("MASTER_ADDR")), str(note.get("MASTER_PORT"))) for note in report.notes}
    shown = " and ".join(f"MASTER_ADDR={address}, MASTER_PORT={port}" for address, port in sorted(named))
    if len(named) != 1:
        return Finding(False, f"The processes do not agree on one place: {shown:.300}.")
    # Rank 0 itself waits for the others: whom it has not seen is told of them.
    lost = [note for note in report.notes if note.get("met") is not True]
    others = [note for note in lost if str(note.get("SLURM_PROCID")) != "0"] or lost
    if others:
        hosts = " and ".join(sorted({str(note["host"]) for note in others}))
        return Finding(False, f"With {shown}, the ranks on {hosts} found nobody there. {_said(report)}")
    return Finding(True, f"With {shown} all ranks met rank 0.")


def ports_of_their_own(well: JobReport, ill: JobReport) -> Finding:
    """Passes if no port that the one job names is named by the other."""
    ports = [{str(note.get("MASTER_PORT")) for note in report.notes} for report in (well, ill)]
    both = ports[0] & ports[1]
    text = f"In each of two jobs MASTER_PORT is {', '.join(sorted(both))}"
    said = f"{text}; where they share a node, the second finds it taken."
    if not both:
        return Finding(True, "Each job has a port of its own.")
    return Finding(False, said, hint="Make a port of SLURM_JOB_ID, which is another number in each job.")


def _said(report: JobReport) -> str:
    return f"The job's output: {report.output.strip()[-300:]}" if report.output.strip() else ""
