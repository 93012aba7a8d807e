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
    jobs = [*(_job(speed, *case) for case in _TELLING), *_drawn_jobs(rng, speed)]
    pairs = [(job, _chosen(answer, job)) for job in jobs]
    yield "fits", compare.first_failure(_fits(job, mesh) for job, mesh in pairs)
    times = [{mesh: each / speed for mesh, each in _of_speed_1(*case).items()} for case in _TELLING]
    times += map(_times, jobs[len(_TELLING) :])
    best = [min(each.values()) for each in times]
    # Drawn jobs count in the last row only: by how much a mistake misses the best there is luck. The rule is
    # for the large model, whose jobs come first: elsewhere it may be better than a passable answer.
    for name, limits in (
        (
            "no slower than the rule of thumb",
            [_by_rule(job, each) for job, each in zip(jobs, times, strict=True) if job.model is LARGE],
        ),
        ("within a fifth of the best", [1.2 * seconds for seconds in best[: len(_TELLING)]]),
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


def _fitting(job: Job) -> list[Mesh]:
    """All meshes that the step can be cut for, and that fit."""
    sizes = range(1, job.cluster.size + 1)
    meshes = (
        Mesh(job.cluster.size // (stages * tensor), stages, tensor)
        for stages, tensor in product(sizes, sizes)
    )
    return [mesh for mesh in meshes if not job.problem(mesh) and memory_bytes(job, mesh) <= job.memory]


def _times(job: Job) -> dict[Mesh, float]:
    """What a step takes on each mesh that fits."""
    return {mesh: step_time(job, mesh).seconds for mesh in _fitting(job)}


@cache
def _of_speed_1(*case: Any) -> dict[Mesh, float]:
    """`_times` of a telling case. All else is in proportion, so they need not be simulated once more."""
    return _times(_job(1.0, *case))


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


def _short(number: float, digits: int = 3) -> float:
    """So many digits of it, so that what was seen can be typed in as it stands."""
    return float(f"{number:.{digits}g}")


_TELLING: list[tuple[TransformerConfig, int, int, tuple[float, float], tuple[float, float], int, float]] = [
    # Model, nodes, devices of a node, latency (us) and GB/s within and between nodes, samples, memory (GB),
    # for devices of 1e14 FLOP/s. What is best, and how much longer a step takes if an estimate lacks a part.
    # 1 x 4 x 4: no bubble 68 %, no tensor all-reduces 62 %, most copies 15 %, the rule of thumb 8 %.
    (LARGE, 2, 8, (5.0, 100.0), (5.0, 100.0), 8, 10.1),
    # 2 x 8 x 2: gradients for nothing 54 %, tensor groups as fast across nodes 219 %, most copies 266 %.
    (LARGE, 16, 2, (5.0, 100.0), (5.0, 3.0), 16, 10.27),
    # 1 x 6 x 4: no bubble 22 %; without the memory's bound another one.
    (LARGE, 6, 4, (5.0, 300.0), (20.0, 50.0), 48, 7.46),
    # 1 x 24 x 1: the rule of thumb 130 %, most copies 49 %.
    (LARGE, 3, 8, (5.0, 25.0), (5.0, 12.0), 96, 13.11),
    # 1 x 24 x 1, where many would be content with a tensor axis: a search that leaves out the last size, 9 %.
    (LARGE, 3, 8, (50.0, 10.0), (50.0, 2.0), 24, 4952.7),
    # 2 x 6 x 2: faster were meshes that leave heads, samples, or devices of a node over.
    (LARGE, 4, 6, (10.0, 300.0), (20.0, 100.0), 2, 80.0),
    # 2 x 1 x 8, across nodes: no tensor group that leaves its node 50 %.
    (LARGE, 8, 2, (2.0, 25.0), (5.0, 25.0), 2, 80.0),
    # A message each way between stages 18 %, or none 47 %; gradients in 4 bytes 18 %.
    (WIDE, 3, 6, (0.5, 25.0), (30.0, 1.0), 18, 3.604598784),
    # No latency, no attention, no bubble, or a ring of p rounds: 13 %.
    (WIDE, 6, 4, (1.0, 25.0), (100.0, 25.0), 12, 1.25153796),
    # No tensor axis but of powers of two 59 %; gradients that pass while others compute 36 %.
    (WIDE, 3, 6, (0.5, 300.0), (500.0, 1.0), 18, 0.753778934),
    # The first replica's messages for the slowest 18 %; messages that each micro-batch waits for 15 %.
    (WIDE, 3, 8, (10.0, 25.0), (100.0, 1.0), 16, 1.534980096),
    # A latency for each collective, not for each round, 224 %; seven or eight all-reduces a block 8 %.
    (TINY, 2, 16, (5.0, 100.0), (5.0, 0.5), 32, 0.229097472),
    # Latencies of a tree 8 %; three or five all-reduces a block 8 %; no messages 73 %.
    (TINY, 3, 8, (1.0, 300.0), (100.0, 25.0), 8, 0.007862292),
    # Filled to the last byte: another mesh 11 %. F taken for 4 D 14 %; messages within nodes 259 %.
    (LONG, 10, 3, (50.0, 300.0), (500.0, 0.3), 30, 0.280379392),
    # On one node: gradients over its link to others 9 %; no bubble where micro-batches are many 9 %.
    (LONG, 1, 16, (0.5, 25.0), (5.0, 2.0), 64, 1.588862976),
    # Half of the rounds, or half of the bytes, for gradients 10 %; overlapped with backward 10 %.
    (LONG, 2, 6, (10.0, 300.0), (10.0, 5.0), 24, 0.44286984192),
    # Attention with half of its operations, or none, 11 %; nothing computed again 9 %.
    (LONG, 3, 6, (5.0, 300.0), (100.0, 25.0), 18, 0.41109798912),
    # Activations in 4 bytes 14 %; a message more or less than there is 14 %.
    (LONG, 16, 2, (1.0, 25.0), (500.0, 0.5), 32, 0.41109798912),
    # Attention with more operations than it has, or a block that is computed once more, 9 %.
    (LONG, 2, 10, (2.0, 100.0), (100.0, 25.0), 20, 0.255049728),
]


def _job(
    speed: float,
    model: TransformerConfig,
    nodes: int,
    devices: int,
    within: tuple[float, float],
    between: tuple[float, float],
    batch: int,
    memory: float,
) -> Job:
    """The case on devices `speed` times as fast, with links in proportion: the best mesh stays the same."""
    near, far = (
        Link(_short(latency * 1e-6 / speed), _short(gigabytes * 1e9 * speed))
        for latency, gigabytes in (within, between)
    )
    cluster = Cluster(nodes, devices, near, far, flops=_short(1e14 * speed))
    return Job(model, batch, cluster, _short(memory * 1e9, 9))


def _drawn_jobs(rng: Rng, speed: float) -> list[Job]:
    """Of some drawn jobs of a drawn model, the two for which fewest meshes are nearly as good as the best."""
    heads = rng.choice((6, 8, 10))
    width = heads * rng.choice((32, 48, 64))
    model = TransformerConfig(
        layers=rng.choice((12, 18, 20, 30)),
        width=width,
        heads=heads,
        context=rng.choice((96, 160, 512)),
        mlp_width=width * rng.choice((1, 2, 4)),
    )
    return sorted((_drawn_job(rng, speed, model) for _ in range(6)), key=_good_meshes)[:2]


def _drawn_job(rng: Rng, speed: float, model: TransformerConfig) -> Job:
    """Some mesh fits: the memory is that of one of them."""
    nodes, devices = rng.choice(((1, 8), (2, 6), (4, 4), (3, 6), (5, 4), (4, 3), (2, 10)))
    latency, bandwidth = rng.choice((2.0, 10.0)), rng.choice((25.0, 100.0, 300.0))
    far = (rng.choice((10.0, 30.0, 100.0)), rng.choice((1.0, 3.0, 12.0, 25.0)))
    batch = nodes * devices * rng.integer(1, 4)
    roomy = _job(speed, model, nodes, devices, (latency, bandwidth), far, batch, 1000.0)
    held = [memory_bytes(roomy, mesh) for mesh in _fitting(roomy)]
    return replace(roomy, memory=_short(1.01 * rng.choice(held), 5))


def _good_meshes(job: Job) -> float:
    """The part of all meshes that fit that take at most a fifth longer than the best."""
    seconds = _times(job).values()
    return sum(each <= 1.2 * min(seconds) for each in seconds) / len(seconds)
