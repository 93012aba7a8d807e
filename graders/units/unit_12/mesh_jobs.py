"""Jobs for which a mesh is chosen, and what a step takes on each."""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from course_lib.cluster.topology import Cluster, Link
from course_lib.models import TransformerConfig
from course_lib.training.mesh_step import Job, Mesh, memory_bytes, step_time
from graders.grading.kit import Rng

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


def times_of(job: Job) -> dict[Mesh, float]:
    """What a step takes on each mesh that fits."""
    return {mesh: step_time(job, mesh).seconds for mesh in _fitting(job)}


@cache
def of_speed_1(*case: Any) -> dict[Mesh, float]:
    """`times` of a telling case. All else is in proportion, so they need not be simulated once more."""
    return times_of(job_of(1.0, *case))


def _short(number: float, digits: int = 3) -> float:
    """So many digits of it, so that what was seen can be typed in as it stands."""
    return float(f"{number:.{digits}g}")


TELLING: list[tuple[TransformerConfig, int, int, tuple[float, float], tuple[float, float], int, float]] = [
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


def job_of(
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


def drawn_jobs(rng: Rng, speed: float) -> list[Job]:
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
    roomy = job_of(speed, model, nodes, devices, (latency, bandwidth), far, batch, 1000.0)
    held = [memory_bytes(roomy, mesh) for mesh in _fitting(roomy)]
    return replace(roomy, memory=_short(1.01 * rng.choice(held), 5))


def _good_meshes(job: Job) -> float:
    """The part of all meshes that fit that take at most a fifth longer than the best."""
    seconds = times_of(job).values()
    return sum(each <= 1.2 * min(seconds) for each in seconds) / len(seconds)
