"""Plans for a model on a cluster, and how good they are."""

from dataclasses import dataclass

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
from graders.grading.kit import Finding, compare
from graders.units.unit_13.drivers.plans import PlanReply
from graders.units.unit_13.plannable import Numbers

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
