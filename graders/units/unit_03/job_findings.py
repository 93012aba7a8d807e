"""What is found of a batch script, and of jobs in which it ran."""

from collections import Counter

from course_lib.slurm.lint import Script, complaints_about
from course_lib.slurm.sites import site_named
from graders.grading.kit import Finding, compare
from graders.units.unit_03.batch_job import JOB_SECONDS, Trial
from graders.units.unit_03.job_report import JobReport


def readable_script(text: object) -> Finding:
    """Passes if sbatch would read all that stands in the text, as it is meant."""
    if type(text) is not str:
        return Finding(False, f"batch_script returned {text!r:.80}; expected the script's text.")
    if in_utf8(text) != text:
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


def in_utf8(text: str) -> str:
    """The text, with ? for what no file can hold."""
    return text.encode(errors="replace").decode()


def _said(report: JobReport) -> str:
    return f"The job's output: {report.output.strip()[-300:]}" if report.output.strip() else ""
