"""The grader of `choose_mesh`: sizes of the axes within the memory, scored by a step's simulated time."""

from dataclasses import asdict
from math import inf
from typing import Any

from course_lib.training.mesh_step import Job, Mesh, memory_bytes
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_12.drivers import choosing as drivers
from graders.units.unit_12.mesh_jobs import JOBS, drawn_job, times_of


@exercise(
    minutes=40,
    difficulty=3,
    rubric=(
        Criterion(
            "fits", 3, "Three whole numbers that Job.problem has nothing against, within memory_bytes."
        ),
        Criterion(
            "within a fifth of the best",
            5,
            "Print your estimate's parts beside those of step_time, for your mesh and for the best.",
        ),
        Criterion(
            "within 5 % of the best",
            4,
            "Five parts: computing, all-reduces in blocks, idle stages, messages, gradients. Is each right "
            "also where F is not 4 D, and where a replica begins in the middle of a node?",
            needs=("fits", "within a fifth of the best"),
        ),
    ),
    hints=(
        "Which meshes are there at all? How many numbers do you have to choose, if their product is given?",
        "What does a device compute for one micro-batch in one block? How often does it do that in a step, "
        "and how often does it wait as long?",
        "Over which link does a ring go whose ranks do not all sit on one node? A round lasts as long as "
        "its slowest message.",
        "In a block's forward there are 2 T (4 D^2 + 2 D F) operations for its matrices and 4 T^2 D for "
        "attention; a backward has twice as many.",
    ),
)
def choose_mesh(answer: Answer, rng: Rng) -> Findings:
    """Jobs whose best meshes differ, and which no estimate with a part missing is good for."""
    pairs = [(job, _chosen(answer, job)) for job in [*JOBS, drawn_job(rng), drawn_job(rng)]]
    yield "fits", compare.first_failure(_fits(*each) for each in pairs)
    # Drawn jobs count in the last row only: by how much a mistake misses the best there is luck.
    known = pairs[: len(JOBS)]
    yield "within a fifth of the best", compare.first_failure(_in_time(*each, 1.2) for each in known)
    yield "within 5 % of the best", compare.first_failure(_in_time(*each, 1.05) for each in pairs)


def _chosen(answer: Answer, job: Job) -> Any:
    """A mesh, or whatever came back instead."""
    cluster = job.cluster
    machine: dict[str, Any] = {
        name: getattr(cluster, name) for name in ("nodes", "devices_per_node", "flops")
    }
    for name in ("intra_node", "inter_node"):
        link = getattr(cluster, name)
        machine[name] = [link.latency, link.bandwidth]
    run = answer.launch(drivers.chosen, asdict(job.model), job.memory, job.batch, machine, ranks=1)
    axes = run.results[0]
    good = isinstance(axes, list) and len(axes) == 3 and all(type(axis) is int for axis in axes)
    return Mesh(*axes) if good else axes


def _fits(job: Job, mesh: Any) -> Finding:
    where = f"{_shown(job)}: "
    if not isinstance(mesh, Mesh):
        return Finding(False, f"{where}three whole numbers were expected; got {compare.shown(mesh)}.")
    if problem := job.problem(mesh):
        return Finding(False, f"{where}got {tuple(mesh)}, but {problem}.")
    held = memory_bytes(job, mesh)
    return Finding(held <= job.memory, f"{where}on {tuple(mesh)} a device holds {held:.4g} bytes.")


def _in_time(job: Job, mesh: Any, factor: float) -> Finding:
    times = times_of(job)
    best = min(times, key=lambda each: times[each])
    seconds, limit = times.get(mesh, inf), factor * times[best] * (1 + 1e-9)
    said = f"{_shown(job)}: on {compare.shown(mesh)} a step"
    expected = f"at most {limit:.4g} s, since {tuple(best)} takes {times[best]:.4g} s"
    return Finding(seconds <= limit, f"{said} takes {seconds:.4g} s; expected {expected}.")


def _shown(job: Job) -> str:
    """The job, as it can be typed in."""
    cluster = job.cluster
    links = ", ".join(
        f"Link({link.latency:g}, {link.bandwidth:g})" for link in (cluster.intra_node, cluster.inter_node)
    )
    return (
        f"choose_mesh({cluster.size}, {job.model}, {job.memory:.9g}, {job.batch}, "
        f"Cluster({cluster.nodes}, {cluster.devices_per_node}, {links}, flops={cluster.flops:g}))"
    )
