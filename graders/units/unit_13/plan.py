"""Unit 13, the open task: a plan for a model on a cluster, scored by the seconds of a step."""

from dataclasses import dataclass

from course_lib.planner import (
    BadPlan,
    ParallelPlan,
    Planner,
    Prediction,
    dimensions,
    split_along,
    torchs_1f1b,
)
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import plans as drivers

RUNS = "runs within the memory"
PLAIN = "no slower than one kind of parallelism"
TENTH, THIRTIETH = "within a tenth of the best known", "within 3 % of the best known"

SPEEDS = [1e-6, 100e9, 10e-6, 5e9, 1e13, 1e12]
Known = tuple[tuple[int, ...], int, int, int]
"""cuts, data, tensor, micro-batches; what is shared are the units inside of the MLPs."""


@dataclass(frozen=True, slots=True)
class Task:
    """inner: units inside of each MLP. memory: bytes of a device. best: the best plan known. plain: the best
    of one kind of parallelism, with as many micro-batches as stages.
    """

    inner: list[int]
    samples: int
    nodes: int
    devices: int
    memory: float
    best: Known
    plain: Known


# As many samples as few numbers divide: then there are few plans, and a check takes less time.
TASKS = (
    Task([4096, 1024], 4 * 251, 2, 4, 1e9, ((0, 1), 2, 2, 2), ((0,), 1, 8, 1)),
    Task([1024] * 4, 8 * 127, 2, 2, 60e6, ((0, 1, 2, 3), 1, 1, 8), ((0, 1, 2, 3), 1, 1, 4)),
)
"""The best plans are a mixture of all three; and stages alone, where others that fit are a tenth slower, and
faster ones do not fit.
"""


@dataclass(frozen=True, slots=True)
class Rated:
    """What was planned for a task. what: both, in words. step: its prediction, or why there is none."""

    task: Task
    planner: Planner
    what: str
    step: Prediction | str

    def runs(self) -> Finding:
        """Passes if the plan can be carried out by all ranks within the memory."""
        if isinstance(self.step, str):
            return Finding(False, f"{self.what}: {self.step}")
        what = f"{self.what}: bytes of the fullest rank"
        return compare.at_most(max(self.step.memory), int(self.task.memory), what)

    def within(self, known: Known, allowed: float) -> Finding:
        """Passes if a step takes at most so many times the seconds of the known plan."""
        assert not isinstance(self.step, str)
        cuts, data, tensor, micro_batches = known
        graph = self.planner.model.graph(self.planner.model.part(data, micro_batches))
        inside = [name for name in dimensions(graph) if name.endswith(".linear.o")]
        split = split_along(graph, inside, tensor)
        least = self.planner.predict(ParallelPlan(cuts, data, tensor, micro_batches, split)).seconds
        taken = self.step.seconds
        said = (
            f"{self.what}: a step takes {taken * 1e3:.3f} ms. With {cuts=}, {data=}, {tensor=}, "
            f"{micro_batches=} it takes {least * 1e3:.3f} ms, and at most {allowed * least * 1e3:.3f} ms "
            "count here."
        )
        return Finding(taken <= allowed * least, said)


@exercise(
    minutes=120,
    difficulty=5,
    rubric=(
        Criterion(
            RUNS,
            4,
            "All ranks of the cluster, samples and letters that divide evenly, no stage above the memory: "
            "Planner.predict tells.",
        ),
        Criterion(
            PLAIN,
            4,
            "Data parallelism, stages, split operators, each alone: which of them does your search miss?",
            needs=(RUNS,),
        ),
        Criterion(TENTH, 4, "For each shape of the mesh, how many micro-batches?", needs=(RUNS, PLAIN)),
        Criterion(
            THIRTIETH,
            4,
            "Move one cut of your best plan by a piece, or take twice the micro-batches: is it faster?",
            needs=(RUNS, TENTH),
        ),
    ),
    hints=(
        "How many shapes (stages, data, tensor) does the mesh have, and how many numbers of micro-batches?",
        "What would a step of each take, by the formula of section 5, if the cuts were the best ones?",
        "Which dimensions of the model have to be shared first, so that others need not move?",
        "Estimates are cheap, predictions are not: for which plans is a prediction worth its time?",
    ),
)
def plan(answer: Answer, rng: Rng) -> Findings:
    """Two tasks whose best plans are of different kinds."""
    rated = [_rated(answer, rng, task) for task in TASKS]
    yield RUNS, compare.first_failure(each.runs() for each in rated)
    yield PLAIN, compare.first_failure(each.within(each.task.plain, 1.001) for each in rated)
    for name, allowed in ((TENTH, 1.1), (THIRTIETH, 1.03)):
        yield name, compare.first_failure(each.within(each.task.best, allowed) for each in rated)


def _rated(answer: Answer, rng: Rng, task: Task) -> Rated:
    """The task on a cluster that is a little faster or slower, by up to 2 % in each number."""
    speeds = [each * (1 + rng.integer(-20, 20) / 1000) for each in SPEEDS]
    given = task.inner, task.samples, task.nodes, task.devices, speeds, task.memory
    reply = answer.call(drivers.planned, *given)
    cluster = drivers.cluster_of(task.nodes, task.devices, speeds)
    planner = Planner(drivers.model_of(task.inner, task.samples), cluster, torchs_1f1b)
    found = ParallelPlan(tuple(reply.cuts), reply.data, reply.tensor, reply.micro_batches, reply.split)
    ranks = task.nodes * task.devices
    if reply.kind != "ParallelPlan":
        step: Prediction | str = f"got {reply.kind}; expected a ParallelPlan."
    elif found.ranks != ranks:
        step = f"it has {found.ranks} ranks, the cluster {ranks}."
    else:
        try:
            step = planner.predict(found)
        except BadPlan as error:
            step = str(error)
    what = (
        f"Residual MLPs of width {drivers.WIDTH} with {task.inner} units inside, {task.samples} samples, "
        f"on {planner.cluster}, memory={task.memory:.3g}, with cuts={found.cuts}, data={found.data}, "
        f"tensor={found.tensor}, micro_batches={found.micro_batches}, {len(found.split)} operators split"
    )
    return Rated(task, planner, what, step)
