"""Unit 13, the open task: a plan for a model on a cluster, scored by the seconds of a step."""

from dataclasses import astuple, dataclass, replace

from course_lib.planner import (
    BadPlan,
    Model,
    ParallelPlan,
    Planner,
    Prediction,
    dimensions,
    execute,
    seconds_of_step,
    split_along,
    torchs_1f1b,
)
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import plans as drivers
from graders.units.unit_13.drivers.plans import PlanReply
from graders.units.unit_13.plannable import Numbers

RUNS = "runs within the memory"
PLAIN = "no slower than one kind of parallelism"
TENTH, THIRTIETH = "within a tenth of the best known", "within 3 % of the best known"

ETHERNET = [1e-6, 20e9, 10e-6, 5e9]
FASTER = [1e-6, 100e9, 10e-6, 5e9]

Known = tuple[tuple[int, ...], int, int, int, str]
"""cuts, data, tensor, micro-batches, and what is shared: nothing "", or heads and units "inside"."""


@dataclass(frozen=True, slots=True)
class Task:
    """known: good plans of several kinds, and plain ones of one kind each. large: what the units inside of
    the largest piece may be; the first number stands in `numbers`.
    """

    numbers: Numbers
    memory: float
    known: tuple[Known, ...]
    plain: tuple[Known, ...]
    large: tuple[int, ...] = (0,)


TASKS = (
    Task(
        Numbers([6144, 1024, 1024, 1024], 1024, 1024, 2, 4, FASTER, 1e13, 1e12),
        1e9,
        (((0, 1), 2, 2, 4, "inside"), ((0, 1), 2, 2, 8, "inside")),
        (((0,), 8, 1, 1, ""), ((0,), 1, 8, 1, "inside")),
        (6144, 5632, 6656),
    ),
    Task(
        Numbers([1024, 1024, 512, 1024, 512], 1024, 1024, 2, 2, FASTER, 1e13, 1e12),
        64.6e6,
        (((0, 1, 2, 3), 1, 1, 16, ""),),
        (((0, 1, 2, 3), 1, 1, 4, ""),),
    ),
    Task(
        Numbers([], 256, 4, 2, 2, ETHERNET, 1e13, 1e12),
        1e9,
        (((0, 1, 2, 3), 1, 1, 4, ""),),
        (((0,), 4, 1, 1, ""), ((0,), 1, 4, 1, "inside"), ((0, 1, 2, 3), 1, 1, 4, "")),
    ),
)
"""Small models on small clusters. The best plans found: a mixture of all three, whose first stage is a single
large piece; stages alone, which leave a tenth of the memory free, where others that fit are a fifth slower;
stages alone again, for a transformer."""


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
    """Three tasks whose best plans are of different kinds."""
    tasks = [_drawn(rng, task) for task in TASKS]
    rated = [
        _Rated.of(task, answer.call(drivers.planned, list(astuple(task.numbers)), task.memory, timeout=120.0))
        for task in tasks
    ]
    yield RUNS, compare.first_failure([*(each.runs() for each in rated), rated[-1].executed()])
    yield PLAIN, compare.first_failure(each.within(each.best(each.task.plain), 1.001) for each in rated)
    best = [each.best((*each.task.known, *each.task.plain)) for each in rated]
    for name, allowed in ((TENTH, 1.1), (THIRTIETH, 1.03)):
        yield (
            name,
            compare.first_failure(
                each.within(known, allowed) for each, known in zip(rated, best, strict=True)
            ),
        )


def _drawn(rng: Rng, task: Task) -> Task:
    """The same on a cluster that is a little faster or slower, by up to 5 % in each number, and with another
    number of units in the largest piece.
    """
    numbers, large = task.numbers, rng.choice(task.large)

    def near(number: float) -> float:
        return number * (1 + rng.integer(-50, 50) / 1000)

    drawn = replace(
        numbers,
        inner=[large if each == task.large[0] else each for each in numbers.inner],
        links=[*map(near, numbers.links)],
        flops=near(numbers.flops),
        memory_bandwidth=near(numbers.memory_bandwidth),
    )
    return replace(task, numbers=drawn)


@dataclass(frozen=True, slots=True)
class _Rated:
    """What the answer has planned for a task. fault: why it cannot be carried out, or empty."""

    task: Task
    planner: Planner
    plan: ParallelPlan
    prediction: Prediction | None
    fault: str = ""

    @classmethod
    def of(cls, task: Task, reply: PlanReply) -> "_Rated":
        planner = Planner(task.numbers.model(), task.numbers.cluster(), torchs_1f1b)
        if reply.kind != ParallelPlan.__name__:
            fault = f"it returned {reply.kind}; expected a ParallelPlan."
            return cls(task, planner, ParallelPlan(), None, fault)
        if not reply.kept:
            fault = "it changed the model: its parameters are others, elsewhere, or have other settings."
            return cls(task, planner, ParallelPlan(), None, fault)
        plan = ParallelPlan(tuple(reply.cuts), reply.data, reply.tensor, reply.micro_batches, reply.split)
        ranks = planner.cluster.size
        if plan.ranks != ranks:
            shape = f"(stages, data, tensor) = {plan.shape}"
            return cls(task, planner, plan, None, f"{shape} has {plan.ranks} ranks, the cluster {ranks}.")
        try:
            return cls(task, planner, plan, planner.predict(plan))
        except BadPlan as error:
            return cls(task, planner, plan, None, str(error))

    def __str__(self) -> str:
        return f"{self.task.numbers}, memory={self.task.memory:.3g}"

    @property
    def own(self) -> str:
        """The answer's plan in words."""
        return _said(self.plan)

    def runs(self) -> Finding:
        """Passes if the plan can be carried out by all ranks within the memory."""
        if self.prediction is None:
            return Finding(False, f"{self}: {self.fault}")
        most = max(self.prediction.memory)
        return compare.at_most(
            most, int(self.task.memory), f"{self}: {self.own} has, in bytes of the fullest rank"
        )

    def executed(self) -> Finding:
        """Passes if the step takes on the simulated cluster what was predicted, to 5 %."""
        if self.prediction is None:
            return Finding(False, f"{self}: {self.fault}")
        run = execute(self.planner.model, self.planner.cluster, self.plan, torchs_1f1b)
        taken, predicted = seconds_of_step(run), self.prediction.seconds
        said = (
            f"{self}: {self.own} takes {taken * 1e3:.3f} ms when it is carried out; "
            f"{predicted * 1e3:.3f} ms were predicted."
        )
        return Finding(abs(taken / predicted - 1) < 0.05, said)

    def within(self, known: tuple[float, ParallelPlan], allowed: float) -> Finding:
        """Passes if a step takes at most so many times the seconds of a known plan."""
        least, faster = known
        taken = float("inf") if self.prediction is None else self.prediction.seconds
        said = (
            f"{self}: a step of {self.own} takes {taken * 1e3:.3f} ms. {_said(faster)} takes "
            f"{least * 1e3:.3f} ms, and at most {allowed * least * 1e3:.3f} ms count here."
        )
        return Finding(taken <= allowed * least, said)

    def best(self, known: tuple[Known, ...]) -> tuple[float, ParallelPlan]:
        """The best of these plans that fit, and its seconds."""
        plans = [_plan(self.planner.model, each) for each in known]
        predicted = [(self.planner.predict(each), each) for each in plans]
        fitting = [(step.seconds, each) for step, each in predicted if max(step.memory) <= self.task.memory]
        return min(fitting, key=lambda each: each[0])


def _said(plan: ParallelPlan) -> str:
    """A plan in words."""
    shared = f"{len(plan.split)} operators split" if plan.tensor > 1 else "no operator split"
    return (
        f"cuts={plan.cuts}, data={plan.data}, tensor={plan.tensor}, micro_batches={plan.micro_batches}, "
        f"{shared}"
    )


def _plan(model: Model, known: Known) -> ParallelPlan:
    """A known plan, whole."""
    cuts, data, tensor, micro_batches, shared = known
    graph = model.graph(model.part(data, micro_batches))
    inside = [name for name in dimensions(graph) if name.endswith((".linear.o", ".linear_4.o"))]
    split = split_along(graph, inside if shared else [], tensor)
    return ParallelPlan(cuts, data, tensor, micro_batches, split)
