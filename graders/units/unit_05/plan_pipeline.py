"""The grader of `plan_pipeline`, the open task, scored by the time of a step."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from course_lib.training.pipeline.actions import COMPUTING, Action, Backward, Forward
from course_lib.training.pipeline.costs import Costs, cost
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_05 import drivers
from graders.units.unit_05.schedules import Step, keeps_at_most, no_longer, read


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
    """Drawn pipelines for which it matters how one plans, and some odd ones that only have to run."""
    tasks = _telling(rng)
    odd = [_planned(answer, task) for task in _odd(rng)]
    planned = [_planned(answer, task) for task in tasks]
    yield "runs within the memory", compare.first_failure(found for _, found in odd + planned)

    def all_within(limits: Iterable[float]) -> Finding:
        return compare.first_failure(
            no_longer(cost(schedule, task.micro_batches, task.costs), limit, f"{task}: ")
            for task, (schedule, _), limit in zip(tasks, planned, limits, strict=True)
        )

    yield "no slower than 1F1B", all_within(task.one_f_one_b() for task in tasks)
    best = [min(task.by_rules().values()) for task in tasks]
    for name, allowed in (("within a tenth of the best", 1.1), ("within 3 % of the best", 1.03)):
        yield name, all_within(allowed * known for known in best)


@dataclass(frozen=True, slots=True)
class Task:
    """seconds: forward, input half and weight half of each stage. memory: micro-batches that each keeps."""

    seconds: list[tuple[float, float, float]]
    micro_batches: int
    memory: list[int]

    def __str__(self) -> str:
        return f"with seconds={self.seconds}, micro_batches={self.micro_batches}, memory={self.memory}"

    @property
    def costs(self) -> Costs:
        return Costs(
            forward=[forward for forward, _, _ in self.seconds],
            backward=[first + second for _, first, second in self.seconds],
            input_share=[first / (first + second) for _, first, second in self.seconds],
        )

    def one_f_one_b(self) -> float:
        """Seconds of 1F1B, whose stages warm up with what their memory, and that before them, allows."""
        stages, schedule = len(self.seconds), []
        for stage in range(stages):
            warm_up = min(self.micro_batches - 1, stages - stage - 1, min(self.memory[: stage + 1]) - 1)
            actions: list[Action] = [Forward(number) for number in range(warm_up)]
            for number in range(self.micro_batches):
                if warm_up + number < self.micro_batches:
                    actions.append(Forward(warm_up + number))
                actions.append(Backward(number))
            schedule.append(actions)
        return cost(schedule, self.micro_batches, self.costs).seconds

    def by_rules(self) -> dict[tuple[str, str], float]:
        """Seconds of the schedules that come about when all stages follow two rules: an order of preference,
        and a bound on what a stage keeps.
        """
        bounds = {"memory": self.memory, "1F1B": list(map(min, self.memory, range(len(self.memory), 0, -1)))}
        return {
            (order, name): _Passing(self, bound).seconds(order)
            for order in ("IFW", "FIW")
            for name, bound in bounds.items()
        }

    def needed_rules(self) -> set[str]:
        """Those without which a step takes too long, but less than a tenth."""
        times = self.by_rules()
        best = min(times.values())
        without = {rule: min(times[rules] for rules in times if rule not in rules) for rule in _RULES}
        return {rule for rule, seconds in without.items() if 1.032 * best < seconds < 1.095 * best}


_RULES = ("IFW", "FIW", "memory", "1F1B")


class _Passing:
    """Time that passes: whichever stage can begin first does what it likes best of what it can do then."""

    def __init__(self, task: Task, bound: list[int]) -> None:
        self._task, self._bound = task, bound
        self._free = [0.0] * len(bound)
        self._done: list[dict[str, list[float]]] = [{"F": [], "I": [], "W": []} for _ in bound]

    def seconds(self, order: str) -> float:
        """When all is done. order: the kinds of action, most wanted first."""
        for _ in range(3 * len(self._bound) * self._task.micro_batches):
            begin, _, stage, kind = min(self._possible(order))
            self._free[stage] = begin + self._task.seconds[stage]["FIW".index(kind)]
            self._done[stage][kind].append(self._free[stage])
        return max(self._free)

    def _possible(self, order: str) -> Iterator[tuple[float, int, int, str]]:
        for stage, done in enumerate(self._done):
            for rank, kind in enumerate(order):
                yield self._earliest(stage, kind, len(done[kind])), rank, stage, kind

    def _earliest(self, stage: int, kind: str, number: int) -> float:
        """When the stage can begin with this kind of action; never, if something is missing."""
        done, last = self._done[stage], len(self._bound) - 1
        if number == self._task.micro_batches:
            return math.inf
        if kind == "F":
            full = number - len(done["W"]) >= self._bound[stage]
            arrived = self._done[stage - 1]["F"] if stage else [0.0] * self._task.micro_batches
            arrived = [] if full else arrived
        elif kind == "I":
            arrived = self._done[stage + 1]["I"] if stage < last else done["F"]
        else:
            arrived = done["I"]
        return max(self._free[stage], arrived[number]) if number < len(arrived) else math.inf


def _telling(rng: Rng) -> list[Task]:
    """Tasks of which three need each rule: who leaves one out is too slow somewhere."""
    tasks: list[Task] = []
    left = [*_RULES] * 3
    while left:
        task = Task(_drawn(rng, 4), rng.integer(4, 6), [rng.integer(2, 5) for _ in range(4)])
        needed = task.needed_rules().intersection(left)
        if needed:
            tasks.append(task)
            for rule in needed:
                left.remove(rule)
    return tasks


def _drawn(rng: Rng, stages: int) -> list[tuple[float, float, float]]:
    """Seconds of stages that differ."""
    return [(rng.integer(4, 12) / 8, rng.integer(4, 12) / 8, rng.integer(4, 12) / 8) for _ in range(stages)]


def _odd(rng: Rng) -> list[Task]:
    """One stage, room for one micro-batch here or there, one micro-batch, fewer than stages."""
    seconds = _drawn(rng, 4)
    return [
        Task(seconds[:1], 3, [2]),
        Task(seconds[:3], 5, [1, 3, 2]),
        Task(seconds[:3], 5, [3, 1, 4]),
        Task(seconds[:2], 1, [1, 1]),
        Task(seconds, rng.integer(2, 3), [4, 3, 2, 1]),
    ]


def _planned(answer: Answer, task: Task) -> tuple[list[list[Action]], Finding]:
    """The answer's schedule, and whether it runs within the memory."""
    step = Step(len(task.seconds), task.micro_batches)
    given = [*map(list, task.seconds)]
    reply = answer.call(drivers.planned, given, task.micro_batches, task.memory)
    if reply.seconds != given or reply.memory != task.memory:
        return [], Finding(
            False, f"{task}: the arguments are others afterwards; they have to stay as they are."
        )
    if len(reply.stages) != step.stages:
        return [], Finding(False, f"{task}: it lists {len(reply.stages)} stages; there are {step.stages}.")
    schedule, fault = read(reply.stages, step, COMPUTING)
    if fault:
        return [], Finding(False, f"{task}: {fault}")
    found = keeps_at_most(schedule, task.memory)
    return schedule, replace(found, seen=f"{task}: {found.seen}")
