"""The grader of `batch_script`."""

import shlex
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
            needs=("what is asked for",),
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
    """The text is read first; then it is submitted, with a command that ends well and with one that fails."""
    nodes, gpus = rng.choice(((2, 3), (3, 2)))
    text = answer.call(call, nodes, gpus, "python train.py --epochs 3")
    # A quoted word may have several lines, whatever stands round the command in the script.
    words = ("--note", f'run "{rng.integer(1, 99)}" for $5 \\n {{{{x}}}} %%', "two\n  lines", "--rate", "0.1")
    lines = answer.call(call, nodes, gpus, shlex.join(["python", "train.py", *words]))
    reading = readable_script(text)
    if reading.passed and not (again := readable_script(lines)).passed:
        reading = Finding(False, f"With a word of two lines in command: {again.seen}")
    yield "sbatch reads it", reading
    if not reading.passed:
        raise AnswerFailed(FailureKind.NOT_ASKED, 'It was not submitted: first fix "sbatch reads it".')

    trials = [new_trial(words, status) for status in (0, 3, 0)]
    # The last one is for one node.
    sizes = (nodes, gpus), (nodes, gpus), (1, rng.integer(4, 5))
    scripts = [answer.call(call, *size, trial.command) for size, trial in zip(sizes, trials, strict=True)]
    pairs = [(_in_utf8(str(script)), trial) for script, trial in zip(scripts, trials, strict=True)]
    # Not on the cluster's first node: a script that names it has to fail. And on no two in a row, so that
    # their list has commas; then on such that follow each other, so that it has none; then on one alone, so
    # that it has no brackets.
    excluded = "node1,node3,node5", "node1,node2", "node1,node2,node3,node4,node6"
    well, ill, alone = job_reports(pairs, exclude=excluded)
    named = unasked(Script(text))
    given = compare.first_failure([asked_for(well, nodes, gpus), asked_for(alone, *sizes[2])])
    yield "what is asked for", given if named.passed else named
    started = one_task_a_gpu(well, trials[0], nodes, gpus)
    yield "one task per GPU", compare.first_failure([started, one_task_a_gpu(alone, trials[2], *sizes[2])])
    met = [
        *(meeting_place(well), named_likewise(well, ill), ports_of_their_own(well, ill)),
        *(meeting_place(alone), named_likewise(well, alone)),
    ]
    yield "a meeting place", compare.first_failure(met)
    yield "fails with the training", fails_with_the_training(well if started.passed else None, ill)


def readable_script(text: object) -> Finding:
    """Passes if sbatch would read all that stands in the text, as it is meant."""
    if type(text) is not str:
        return Finding(False, f"batch_script returned {text!r:.80}; expected the script's text.")
    if _in_utf8(text) != text:
        return Finding(False, f"{text!r:.80} holds half a character, which no file can.")
    complaints = complaints_about(Script(text), site_named("local"))
    return Finding(not complaints, " ".join(complaints[:3]) or "sbatch reads every line as meant.")


def unasked(script: Script) -> Finding:
    """Passes if the script names nothing that nobody has asked for."""
    named = [
        f"--{name}"
        for name in ("partition", "account", "nodelist", "nodefile", "exclude")
        if script.option(f"--{name}")
    ]
    said = " and ".join(named)
    return Finding(not named, f"The script has {said or 'none'}, which the exercise does not ask for.")


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
    wanted = f"{compare.counted(nodes, 'node')} and {nodes * gpus_per_node} GPUs"
    expected = f"{wanted} for {LEAST_MINUTES} to {MINUTES} minutes"
    all_of_it = " With --exclusive a job has all that is in its nodes." if report.whole_nodes else ""
    return Finding(right, f"{seen}; expected {expected}.{all_of_it}")


LEAST_MINUTES, MINUTES = 10, 30
"""The shortest and the longest time limit that the exercise allows."""


def one_task_a_gpu(report: JobReport, trial: Trial, nodes: int, gpus: int) -> Finding:
    """Passes if the command ran once for each GPU, as tasks of one srun, with its words as they were."""
    tasks = Counter(note["host"] for note in report.notes)
    where = ", ".join(f"{count} on {host}" for host, count in sorted(tasks.items())) or "none"
    if sorted(tasks.values()) != [gpus] * nodes:
        each = f"{gpus} on each of {nodes} nodes" if nodes > 1 else f"{gpus} on one node"
        text = f"Processes of the command: {where}; expected {each}. {_said(report)}"
        return Finding(False, text, hint=_EACH_NODE if len(tasks) > 1 else "")
    ranks = sorted(str(note.get("SLURM_PROCID")) for note in report.notes)
    if ranks != sorted(map(str, range(nodes * gpus))):
        text = f"The processes' SLURM_PROCID are {', '.join(ranks)}; expected each of 0 to {nodes * gpus - 1}"
        return Finding(False, f"{text} once: one srun has to start them all.")
    words = next((note["words"] for note in report.notes if note["words"] != list(trial.words)), None)
    if words is not None:
        seen = f"The command's words were {words!r:.200}, not {list(trial.words)}."
        return Finding(False, seen, hint="command is quoted already: put it behind srun as it is.")
    return Finding(True, f"Processes of the command: {where}.")


_EACH_NODE = "--ntasks alone fills the first node; --ntasks-per-node says how many tasks each node gets."


def meeting_place(report: JobReport) -> Finding:
    """Passes if rank 0 listened at MASTER_PORT, and all others reached it at MASTER_ADDR."""
    named = {(str(note.get("MASTER_ADDR")), str(note.get("MASTER_PORT"))) for note in report.notes}
    shown = " and ".join(f"MASTER_ADDR={address}, MASTER_PORT={port}" for address, port in sorted(named))
    if len(named) != 1:
        return Finding(False, f"The processes do not agree on one place: {shown:.300}.")
    (port,) = (port for _, port in named)
    if port.isdecimal() and not (len(port) < 6 and 0 < int(port) <= LAST_PORT):
        job = (report.fields or {}).get("JobId")
        text = f"In job {job} MASTER_PORT is {port:.20}; ports are the numbers from 1 to {LAST_PORT}."
        return Finding(
            False, text, hint="A job's number may have seven digits: make a port of its remainder."
        )
    # Rank 0 itself waits for the others: whom it has not seen is told of them.
    lost = [note for note in report.notes if note.get("met") is not True]
    others = [note for note in lost if str(note.get("SLURM_PROCID")) != "0"] or lost
    if others:
        hosts = " and ".join(sorted({str(note["host"]) for note in others}))
        said = f" {_said(report)}" if port == "None" else ""
        return Finding(False, f"With {shown}, the ranks on {hosts} found nobody there.{said}")
    return Finding(True, f"With {shown} all ranks met rank 0.")


LAST_PORT = 65_535
"""The largest number of a port."""


def named_likewise(well: JobReport, ill: JobReport) -> Finding:
    """Passes if MASTER_ADDR is the first host's name in the second job too, if it is in the first."""
    for report in (well, ill):
        for address in sorted({str(note.get("MASTER_ADDR")) for note in report.notes} - {report.first_host}):
            if report is ill:
                nodes = (ill.fields or {}).get("NodeList")
                text = (
                    f"In a job on {nodes} MASTER_ADDR is {address!r:.80}; its first host is {ill.first_host}."
                )
                return Finding(False, text)
            return Finding(True, "MASTER_ADDR is an address.")
    return Finding(True, "MASTER_ADDR is the job's first host.")


def ports_of_their_own(well: JobReport, ill: JobReport) -> Finding:
    """Passes if no port that the one job names is named by the other."""
    ports = [{str(note.get("MASTER_PORT")) for note in report.notes} for report in (well, ill)]
    both = ports[0] & ports[1]
    text = f"In each of two jobs MASTER_PORT is {', '.join(sorted(both))}"
    said = f"{text}; where they share a node, the second finds it taken."
    if not both:
        return Finding(True, "Each job has a port of its own.")
    return Finding(False, said, hint="Make a port of SLURM_JOB_ID, which is another number in each job.")


def fails_with_the_training(well: JobReport | None, ill: JobReport) -> Finding:
    """Passes if the job's state is what its training's exit status says. well: None where that training,
    which would have ended well, was not started as it should be.
    """
    state = well.state if well else "COMPLETED"
    text = f"After a training that ended well the job was {state}, after one" if well else "After a training"
    right = (state, ill.state) == ("COMPLETED", "FAILED")
    return Finding(
        right, f"{text} that failed {ill.state}; expected {'COMPLETED and ' if well else ''}FAILED."
    )


def _in_utf8(text: str) -> str:
    """The text, with ? for what no file can hold."""
    return text.encode(errors="replace").decode()


def _said(report: JobReport) -> str:
    return f"The job's output: {report.output.strip()[-300:]}" if report.output.strip() else ""
