"""Unit 13, the open task: a plan for a model on a cluster, scored by the seconds of a step."""

from dataclasses import astuple, dataclass, replace

from course_lib.planner import (
    BadPlan,
    Model,
    ParallelPlan,
    Planner,
    Prediction,
    dimensions,
    split_along,
    torchs_1f1b,
)
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import plans as drivers
from graders.units.unit_13.drivers.plans import Numbers, PlanReply

RUNS = "runs within the memory"
PLAIN = "no slower than one kind of parallelism"
TENTH, THIRTIETH = "within a tenth of the best known", "within 3 % of the best known"

LINKS = [1e-6, 100e9, 10e-6, 5e9]

Known = tuple[tuple[int, ...], int, int, int]
"""cuts, data, tensor, micro-batches; what is shared are the units inside of the MLPs."""


@dataclass(frozen=True, slots=True)
class Task:
    """best: the best plan known. plain: plans of one kind of parallelism each."""

    numbers: Numbers
    memory: float
    best: Known
    plain: tuple[Known, ...]


# As many samples as few numbers divide: then there are few plans, and a check takes less time.
TASKS = (
    Task(
        Numbers([6144, 1024, 1024], 1024, 8 * 127, 2, 4, LINKS, 1e13, 1e12),
        1e9,
        ((0, 1), 2, 2, 4),
        (((0,), 8, 1, 1), ((0,), 1, 8, 1)),
    ),
    Task(
        Numbers([1024, 512, 1024, 1024], 1024, 16 * 61, 2, 2, LINKS, 1e13, 1e12),
        60e6,
        ((0, 1, 2, 3), 1, 1, 16),
        (((0, 1, 2, 3), 1, 1, 4),),
    ),
)
"""The best plans found: a mixture of all three, whose first stage is a single large piece; and stages alone,
where others that fit are a fifth slower, and faster ones do not fit."""


@dataclass(frozen=True, slots=True)
class Rated:
    """What the answer has planned for a task. fault: why it cannot be carried out, or empty."""

    task: Task
    planner: Planner
    plan: ParallelPlan
    prediction: Prediction | None
    fault: str = ""

    @classmethod
    def of(cls, task: Task, reply: PlanReply) -> "Rated":
        planner = Planner(task.numbers.model(), task.numbers.cluster(), torchs_1f1b)
        if reply.kind != ParallelPlan.__name__:
            return cls(task, planner, ParallelPlan(), None, f"got {reply.kind}; expected a ParallelPlan.")
        plan = ParallelPlan(tuple(reply.cuts), reply.data, reply.tensor, reply.micro_batches, reply.split)
        ranks = planner.cluster.size
        if plan.ranks != ranks:
            fault = f"{_said(plan)} has {plan.ranks} ranks, the cluster {ranks}."
            return cls(task, planner, plan, None, fault)
        try:
            return cls(task, planner, plan, planner.predict(plan))
        except BadPlan as error:
            return cls(task, planner, plan, None, str(error))

    def __str__(self) -> str:
        return f"{self.task.numbers}, memory={self.task.memory:.3g}"

    def runs(self) -> Finding:
        """Passes if the plan can be carried out by all ranks within the memory."""
        if self.prediction is None:
            return Finding(False, f"{self}: {self.fault}")
        what = f"{self}: {_said(self.plan)} has, in bytes of the fullest rank"
        return compare.at_most(max(self.prediction.memory), int(self.task.memory), what)

    def within(self, known: tuple[Known, ...], allowed: float) -> Finding:
        """Passes if a step takes at most so many times the seconds of the best of these plans."""
        assert self.prediction is not None
        plans = [_plan(self.planner.model, each) for each in known]
        least, faster = min(
            ((self.planner.predict(each).seconds, each) for each in plans), key=lambda pair: pair[0]
        )
        taken = self.prediction.seconds
        said = (
            f"{self}: a step of {_said(self.plan)} takes {taken * 1e3:.3f} ms. {_said(faster)} takes "
            f"{least * 1e3:.3f} ms, and at most {allowed * least * 1e3:.3f} ms count here."
        )
        return Finding(taken <= allowed * least, said)


def _said(plan: ParallelPlan) -> str:
    """A plan in words."""
    shared = f"{len(plan.split)} operators split" if plan.tensor > 1 else "no operator split"
    return (
        f"cuts={plan.cuts}, data={plan.data}, tensor={plan.tensor}, micro_batches={plan.micro_batches}, "
        f"{shared}"
    )


def _plan(model: Model, known: Known) -> ParallelPlan:
    """A known plan, whole."""
    cuts, data, tensor, micro_batches = known
    graph = model.graph(model.part(data, micro_batches))
    inside = [name for name in dimensions(graph) if name.endswith(".linear.o")]
    return ParallelPlan(cuts, data, tensor, micro_batches, split_along(graph, inside, tensor))


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
    tasks = [_drawn(rng, task) for task in TASKS]
    rated = [
        Rated.of(task, answer.call(drivers.planned, list(astuple(task.numbers)), task.memory, timeout=120.0))
        for task in tasks
    ]
    yield RUNS, compare.first_failure(each.runs() for each in rated)
    yield PLAIN, compare.first_failure(each.within(each.task.plain, 1.001) for each in rated)
    for name, allowed in ((TENTH, 1.1), (THIRTIETH, 1.03)):
        yield name, compare.first_failure(each.within((each.task.best,), allowed) for each in rated)


def _drawn(rng: Rng, task: Task) -> Task:
    """The same on a cluster that is a little faster or slower, by up to 5 % in each number."""

    def near(number: float) -> float:
        return number * (1 + rng.integer(-50, 50) / 1000)

    given = task.numbers
    numbers = replace(
        given,
        links=[*map(near, given.links)],
        flops=near(given.flops),
        memory_bandwidth=near(given.memory_bandwidth),
    )
    return replace(task, numbers=numbers)
