"""The simulation of a step that is told what changed, beside the whole simulation."""

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, times_faster
from course_lib.planner.placements import Machine, PlacedStep, branches
from graders.guest.run_cells import run_cells
from graders.submissions.read import read_submission

ROOT = Path(__file__).parents[1]
BRANCHES, GPUS_PER_NODE, PARTS, CHANGES = 64, 8, 4, 40


def rows() -> Iterator[Row]:
    """The comparison of this module: a branch that moves should not cost what the whole model does."""
    solved: dict[str, Any] = {"__name__": "solution"}
    run_cells(read_submission(ROOT / "solutions" / "13_automatic.py").cells, solved)
    whole, delta = whole_and_delta(solved["simulate"], solved["resimulate"])
    what = f"simulating a change in one of {BRANCHES} branches on {BRANCHES} devices"
    yield times_faster(what, delta, whole, "the whole simulation", 5)


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
