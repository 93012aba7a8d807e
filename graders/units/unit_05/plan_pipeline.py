"""The grader of `plan_pipeline`, the open task, scored by the time of a step."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from course_lib.training.pipeline.actions import COMPUTING, Action
from course_lib.training.pipeline.costs import Costs, cost
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_05 import drivers
from graders.units.unit_05.schedules import Step, keeps_at_most, no_longer, read

Seconds = tuple[float, float, float]
"""Of a stage: forward, input half and weight half."""


@dataclass(frozen=True, slots=True)
class Task:
    """memory: micro-batches that each stage keeps. best: seconds of the best schedule that is known. usual:
    of 1F1B, whose stages warm up with what their memory, and that before them, allows.
    """

    seconds: list[Seconds]
    micro_batches: int
    memory: list[int]
    best: float = 0.0
    usual: float = 0.0

    def __str__(self) -> str:
        return f"with seconds={self.seconds}, micro_batches={self.micro_batches}, memory={self.memory}"

    @property
    def costs(self) -> Costs:
        return Costs(
            forward=[forward for forward, _, _ in self.seconds],
            backward=[first + second for _, first, second in self.seconds],
            input_share=[first / (first + second) for _, first, second in self.seconds],
        )


# The best were found by letting time pass: whichever stage can begin first does what it likes best, forwards
# or input halves, and keeps as much as it can, or no more than under 1F1B.
TELLING = (
    Task([(7, 8, 10), (4, 11, 9), (12, 7, 7), (8, 11, 7)], 6, [3, 3, 3, 5], 216, 300),
    Task([(5, 11, 8), (6, 6, 12), (11, 7, 6), (7, 12, 11)], 4, [2, 2, 3, 5], 172, 276),
    Task([(7, 4, 10), (4, 10, 8), (9, 9, 4), (12, 4, 6)], 4, [5, 5, 3, 2], 129, 153),
    Task([(4, 6, 12), (7, 9, 7), (12, 10, 9), (12, 4, 8)], 4, [3, 5, 3, 5], 157, 200),
    Task([(7, 6, 12), (8, 9, 6), (4, 5, 6), (6, 9, 8)], 6, [4, 5, 3, 2], 173, 201),
)

STAGES = TELLING[0].seconds
ODD = (Task(STAGES[:1], 3, [2]), Task(STAGES[:3], 5, [3, 1, 4]), Task(STAGES, 2, [4, 3, 2, 1]))
"""One stage, room for one micro-batch on one of them, fewer micro-batches than stages."""


@exercise(
    minutes=60,
    difficulty=5,
    rubric=(
        Criterion(
            "runs within the memory",
            3,
            "How many micro-batches wait on a stage, counted as in peak_activations?",
        ),
        Criterion("no slower than 1F1B", 3, "Whole backwards let the stage before wait longer than it must."),
        Criterion(
            "within a tenth of the best",
            2,
            "Which stage is the slowest, and when does it stand idle?",
            needs=("no slower than 1F1B",),
        ),
        Criterion(
            "within 3 % of the best",
            2,
            "Try several rules, and take the best of what comes out: cost tells you.",
            needs=("within a tenth of the best",),
        ),
    ),
    hints=(
        "If you let time pass, what could a stage do at this moment, and which of it does somebody wait for?",
        "Does a stage that can do both begin with a forward or with an input half? Does it fill its memory, "
        "or keep no more than under 1F1B? Which is best depends on the stages.",
    ),
)
def plan_pipeline(answer: Answer, rng: Rng) -> Findings:
    """Pipelines for which it matters how one plans, and odd ones that only have to run."""
    odd, planned = ([_planned(answer, task) for task in tasks] for tasks in (ODD, TELLING))
    yield "runs within the memory", compare.first_failure(found for _, found in odd + planned)

    def all_within(limits: Iterable[float]) -> Finding:
        return compare.first_failure(
            no_longer(cost(schedule, task.micro_batches, task.costs), limit, f"{task}: ")
            for task, (schedule, _), limit in zip(TELLING, planned, limits, strict=True)
        )

    yield "no slower than 1F1B", all_within(task.usual for task in TELLING)
    yield "within a tenth of the best", all_within(1.1 * task.best for task in TELLING)
    yield "within 3 % of the best", all_within(1.03 * task.best for task in TELLING)


def _planned(answer: Answer, task: Task) -> tuple[list[list[Action]], Finding]:
    """The answer's schedule, and whether it runs within the memory."""
    step = Step(len(task.seconds), task.micro_batches)
    stages = answer.call(drivers.planned, task.seconds, task.micro_batches, task.memory)
    if len(stages) != step.stages:
        return [], Finding(False, f"{task}: it lists {len(stages)} stages; expected {step.stages}.")
    schedule, fault = read(stages, step, COMPUTING)
    found = Finding(False, fault) if fault else keeps_at_most(schedule, task.memory)
    return schedule, replace(found, seen=f"{task}: {found.seen}")
