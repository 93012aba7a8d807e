"""The grader of `choose_mesh`: sizes of the axes within the memory, scored by a step's simulated time."""

from dataclasses import asdict
from math import inf
from typing import Any

from course_lib.training.mesh_step import Job, Mesh, memory_bytes
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_12.drivers import choosing as drivers
from graders.units.unit_12.mesh_jobs import LARGE, TELLING, drawn_jobs, job_of, of_speed_1, times_of


@exercise(
    minutes=40,
    difficulty=3,
    rubric=(
        Criterion(
            "fits", 3, "Three whole numbers that Job.problem has nothing against, within memory_bytes."
        ),
        Criterion(
            "no slower than the rule of thumb",
            2,
            "What do all-reduces across nodes take? And what does a step take without any tensor axis?",
        ),
        Criterion(
            "within a fifth of the best",
            3,
            "Print your estimate's parts beside those of step_time, for your mesh and for the best.",
            needs=("fits", "no slower than the rule of thumb"),
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
    speed = 2.0 ** rng.integer(-2, 2)
    jobs = [*(job_of(speed, *case) for case in TELLING), *drawn_jobs(rng, speed)]
    pairs = [(job, _chosen(answer, job)) for job in jobs]
    yield "fits", compare.first_failure(_fits(job, mesh) for job, mesh in pairs)
    times = [{mesh: each / speed for mesh, each in of_speed_1(*case).items()} for case in TELLING]
    times += map(times_of, jobs[len(TELLING) :])
    best = [min(each.values()) for each in times]
    # Drawn jobs count in the last row only: by how much a mistake misses the best there is luck. The rule is
    # for the large model, whose jobs come first: elsewhere it may be better than a passable answer.
    for name, limits in (
        (
            "no slower than the rule of thumb",
            [_by_rule(job, each) for job, each in zip(jobs, times, strict=True) if job.model is LARGE],
        ),
        ("within a fifth of the best", [1.2 * seconds for seconds in best[: len(TELLING)]]),
        ("within 5 % of the best", [1.05 * seconds for seconds in best]),
    ):
        yield (
            name,
            compare.first_failure(
                _in_time(job, mesh, each, limit)
                for (job, mesh), each, limit in zip(pairs, times, limits, strict=False)
            ),
        )


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


def _in_time(job: Job, mesh: Any, times: dict[Mesh, float], limit: float) -> Finding:
    seconds = times[mesh] if isinstance(mesh, Mesh) and mesh in times else inf
    best = min(times, key=lambda each: times[each])
    return Finding(
        seconds <= limit * (1 + 1e-9),
        f"{_shown(job)}: with F = {job.model.inner} and D = {job.model.width}, on {compare.shown(mesh)} a "
        f"step takes {seconds:.4g} s; at most {limit:.4g} s. The best, {tuple(best)}, takes "
        f"{times[best]:.4g} s.",
    )


def _by_rule(job: Job, times: dict[Mesh, float]) -> float:
    """What a step takes with the widest tensor axis that fits a node, and then as few stages as may be."""
    node = job.cluster.devices_per_node
    tensor = max((mesh.tensor for mesh in times if mesh.tensor <= node), default=0)
    by_rule = [mesh for mesh in times if mesh.tensor == tensor]
    return times[min(by_rule or times, key=lambda mesh: mesh.pipeline)]


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
