"""The grader of `choose_mesh`: sizes of the axes within the memory, scored by a step's simulated time."""

from dataclasses import asdict, replace
from functools import cache
from itertools import product
from math import inf
from typing import Any

from course_lib.cluster.topology import Cluster, Link
from course_lib.models import TransformerConfig
from course_lib.training.mesh_step import Job, Mesh, memory_bytes, step_time
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_12.drivers import choosing as drivers

LARGE = TransformerConfig(layers=24, width=4096, heads=16, context=1024)
WIDE = TransformerConfig(layers=18, width=768, heads=12, context=2048)
TINY = TransformerConfig(layers=24, width=256, heads=16, context=32, mlp_width=256)
LONG = TransformerConfig(layers=30, width=256, heads=8, context=2048, mlp_width=256)


def _fitting(job: Job) -> list[Mesh]:
    """All meshes that the step can be cut for, and that fit."""
    sizes = range(1, job.cluster.size + 1)
    meshes = (
        Mesh(job.cluster.size // (stages * tensor), stages, tensor)
        for stages, tensor in product(sizes, sizes)
    )
    return [mesh for mesh in meshes if not job.problem(mesh) and memory_bytes(job, mesh) <= job.memory]


@cache
def times_of(job: Job) -> dict[Mesh, float]:
    """What a step takes on each mesh that fits."""
    return {mesh: step_time(job, mesh).seconds for mesh in _fitting(job)}


def _job(
    model: TransformerConfig,
    nodes: int,
    devices: int,
    within: tuple[float, float],
    between: tuple[float, float],
    batch: int,
    memory: float,
) -> Job:
    """On nodes of so many devices; latency (us) and GB/s within and between nodes; samples; memory (GB)."""
    near, far = (
        Link(float(f"{latency}e-6"), float(f"{gigabytes}e9")) for latency, gigabytes in (within, between)
    )
    return Job(model, batch, Cluster(nodes, devices, near, far, flops=1e14), float(f"{memory}e9"))


def drawn_job(rng: Rng) -> Job:
    """A job of a drawn model, whose memory is just what one of its meshes needs."""
    heads = rng.choice((6, 8, 10))
    width = heads * rng.choice((32, 48, 64))
    layers, context = rng.choice((12, 18, 20, 30)), rng.choice((96, 160, 512))
    model = TransformerConfig(layers, width, heads, context=context, mlp_width=width * rng.choice((1, 2, 4)))
    nodes, devices = rng.choice(((2, 6), (4, 4), (3, 6), (5, 4), (4, 3), (2, 10)))
    within = rng.choice((2.0, 10.0)), rng.choice((25.0, 100.0, 300.0))
    between = rng.choice((10.0, 30.0, 100.0)), rng.choice((1.0, 3.0, 12.0, 25.0))
    roomy = _job(model, nodes, devices, within, between, nodes * devices * rng.integer(1, 4), 1000.0)
    return replace(roomy, memory=1.01 * rng.choice([memory_bytes(roomy, mesh) for mesh in _fitting(roomy)]))


JOBS = [
    # What is best, and how much longer a step takes if an estimate lacks a part.
    # 1 x 4 x 4: no bubble 68 %, no tensor all-reduces 62 %, most copies 15 %.
    _job(LARGE, 2, 8, (5.0, 100.0), (5.0, 100.0), 8, 10.1),
    # 2 x 8 x 2: gradients for nothing 54 %, tensor groups as fast across nodes 219 %, most copies 266 %.
    _job(LARGE, 16, 2, (5.0, 100.0), (5.0, 3.0), 16, 10.27),
    # 2 x 1 x 8, across nodes: no tensor group that leaves its node 50 %.
    _job(LARGE, 8, 2, (2.0, 25.0), (5.0, 25.0), 2, 80.0),
    # A message each way between stages 18 %, or none 47 %; gradients in 4 bytes 18 %.
    _job(WIDE, 3, 6, (0.5, 25.0), (30.0, 1.0), 18, 3.604598784),
    # No tensor axis but of powers of two 59 %; gradients that pass while others compute 36 %.
    _job(WIDE, 3, 6, (0.5, 300.0), (500.0, 1.0), 18, 0.753778934),
    # The first replica's messages for the slowest 18 %; messages that each micro-batch waits for 15 %.
    _job(WIDE, 3, 8, (10.0, 25.0), (100.0, 1.0), 16, 1.534980096),
    # A latency for each collective, not for each round, 224 %; seven or eight all-reduces a block 8 %.
    _job(TINY, 2, 16, (5.0, 100.0), (5.0, 0.5), 32, 0.229097472),
    # Filled to the last byte: another mesh 11 %. F taken for 4 D 14 %; messages within nodes 259 %.
    _job(LONG, 10, 3, (50.0, 300.0), (500.0, 0.3), 30, 0.280379392),
    # Attention with half of its operations, or none, 11 %; nothing computed again 9 %.
    _job(LONG, 3, 6, (5.0, 300.0), (100.0, 25.0), 18, 0.41109798912),
]
"""No estimate with a part missing is good for all of them."""


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
    described = asdict(job)
    parts = ("nodes", "devices_per_node", "flops", "intra_node", "inter_node")
    machine = {name: described["cluster"][name] for name in parts}
    run = answer.launch(drivers.chosen, described["model"], job.memory, job.batch, machine, ranks=1)
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
