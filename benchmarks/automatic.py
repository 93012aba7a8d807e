"""A simulation that is told what changed, beside the whole one; and a plan for many devices."""

import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.measure import Row, at_most, times_faster
from benchmarks.solutions import solution_of
from course_lib.cluster.topology import Cluster, Link
from course_lib.models import Transformer, TransformerConfig, next_token_loss
from course_lib.planner import Model
from course_lib.planner.placements import Machine, PlacedStep, branches

BRANCHES, GPUS_PER_NODE, PARTS, CHANGES = 64, 8, 4, 40
LAYERS, NODES = 24, 8


def rows() -> Iterator[Row]:
    """A branch that moves should not cost what the whole model does, nor a block what all blocks do."""
    solved = solution_of("13_automatic")
    whole, delta = whole_and_delta(solved["simulate"], solved["resimulate"])
    what = f"simulating a change in one of {BRANCHES} branches on {BRANCHES} devices"
    yield times_faster(what, delta, whole, "the whole simulation", 5)
    what = f"plan for a transformer of {LAYERS} layers on {NODES * GPUS_PER_NODE} devices"
    yield at_most(what, planning(solved["plan"]), 30)


def planning(plan: Any) -> float:
    """Seconds until there is a plan for a transformer, 64 sequences of 1024 tokens, devices with 80 GB."""
    config = TransformerConfig(LAYERS, width=2048, heads=16, vocabulary=32_000, context=1024, tied=False)
    with torch.device("meta"):
        tokens = torch.empty(64, config.context, dtype=torch.int64)
        model = Model(Transformer(config).pieces, tokens, tokens, next_token_loss)
    links = Link(1e-6, 200e9), Link(5e-6, 25e9)
    cluster = Cluster(NODES, GPUS_PER_NODE, *links, flops=150e12, memory_bandwidth=2e12)
    begin = time.perf_counter()
    plan(model, cluster, 80e9)
    return time.perf_counter() - begin


def whole_and_delta(simulate: Any, resimulate: Any) -> tuple[float, float]:
    """Median seconds of both, for random operators that go to random devices."""
    machine = Machine(BRANCHES, GPUS_PER_NODE, speed=5e12, within=10e9, between=10e9 / 8)
    operators = branches(BRANCHES)
    step = PlacedStep(operators, machine, PARTS)
    # Each branch is on a device of its own, and what follows all of them on the first.
    depth = len(operators) // BRANCHES
    plan = tuple((number // depth % BRANCHES,) * PARTS for number in range(len(operators)))
    timeline = simulate(step.tasks(plan), step.edges, step.devices)
    generator = random.Random(0)
    seconds: dict[str, list[float]] = {"whole": [], "delta": []}
    for _ in range(CHANGES):
        number, device = generator.randrange(len(plan)), generator.randrange(BRANCHES)
        changed = (*plan[:number], (device,) * PARTS, *plan[number + 1 :])
        begin = time.perf_counter()
        simulate(step.tasks(changed), step.edges, step.devices)
        seconds["whole"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        resimulate(timeline, step.changes(plan, changed))
        seconds["delta"].append(time.perf_counter() - begin)
        resimulate(timeline, step.changes(changed, plan))
    return statistics.median(seconds["whole"]), statistics.median(seconds["delta"])
