"""Schedules of a step, by cases: how they are tried, the rows that they share, and what is asked of them."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.training.pipeline.actions import Action, Backward, BackwardInput, BackwardWeight, Forward
from course_lib.training.pipeline.checking import BadSchedule, check_schedule
from course_lib.training.pipeline.costs import Costs, Timing, cost
from graders.grading.cases import both, vary
from graders.grading.exercise import Exercise
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases, feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.unit_05 import drivers
from graders.units.unit_05.drivers import action_of
from graders.units.unit_05.peak_activations import peak

Kinds = tuple[type[Action], ...]
WHOLE: Kinds = (Forward, Backward)
HALVES: Kinds = (Forward, BackwardInput, BackwardWeight)

AS_LITTLE_MEMORY = ("every micro-batch, once", "memory")
"""What is new counts only within their memory: GPipe, which keeps everything, is as fast as 1F1B."""


@dataclass(frozen=True, slots=True)
class Step:
    """chunks: 0 where the answer is not asked for any, and has one."""

    stages: int = feature(4, lambda number: compare.counted(number, "stage"))
    micro_batches: int = feature(6, lambda number: f"{number} micro-batch{'es' * (number > 1)}")
    chunks: int = feature(0, lambda number: f"{compare.counted(number, 'chunk')} a stage" if number else "")

    @property
    def pieces(self) -> int:
        """Chunks that each stage has."""
        return max(1, self.chunks)

    @property
    def options(self) -> list[int]:
        """What the answer is told after the stage."""
        return [self.stages, self.micro_batches, *([self.chunks] if self.chunks else [])]


@dataclass(frozen=True, slots=True)
class Listed:
    """A schedule that can run. seconds: drawn, what a micro-batch takes on a stage, forward and backward."""

    step: Step
    schedule: list[list[Action]]
    seconds: tuple[float, float]

    def timing(self, costs: Costs) -> Timing:
        """When everything happens."""
        return cost(self.schedule, self.step.micro_batches, costs, self.step.pieces)


@dataclass(frozen=True)
class OfSchedule(Stage[Step]):
    """kinds: of actions of which schedules have to consist."""

    name: str
    kinds: Kinds

    def together(self, step: Step) -> Hashable:
        return "in turn"

    def run(self, answer: Answer, cases: Sequence[tuple[Step, Rng]]) -> Sequence[tuple[Finding, Listed]]:
        """Of each whether the schedule can run, and the schedule."""
        told = answer.call(drivers.schedules, [step.options for step, _ in cases])
        found = []
        for plain, (step, rng) in compare.side_by_side(told, cases):
            schedule, fault = read(plain, step, self.kinds)
            seconds = rng.integer(2, 9) / 8, rng.integer(2, 20) / 8
            text = fault or "every stage does each micro-batch once, and nobody waits for ever."
            found.append((Finding(not fault, text), Listed(step, schedule, seconds)))
        return found

    def typed(self, step: Step) -> str:
        options = ", ".join(map(str, step.options))
        return f"[list({self.name}(stage, {options})) for stage in range({step.stages})]"


def read(stages: Sequence[Any], step: Step, kinds: Kinds) -> tuple[list[list[Action]], str]:
    """A schedule from the plain data that a driver makes of it, and why it cannot run; empty if it can."""
    schedule = [
        [action_of(each) for each in plain] for plain, _ in compare.side_by_side(stages, range(step.stages))
    ]
    for stage, actions in enumerate(schedule):
        for action in actions:
            if type(action) not in kinds:
                names = ", ".join(kind.__name__ for kind in kinds)
                return [], f"stage {stage} lists {compare.shown(action)}; expected are {names}."
    try:
        check_schedule(schedule, step.micro_batches, step.pieces)
    except BadSchedule as error:
        return [], str(error)
    return schedule, ""


def schedule_of_steps(
    *,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    base: Step = Step(),
    kinds: Kinds = WHOLE,
) -> Callable[[Callable[..., Any]], Exercise]:
    """Register an exercise that asks for schedules, under the name of the function below."""

    def register(limits: Callable[..., Any]) -> Exercise:
        judged = ByCases(base, OfSchedule(limits.__name__, kinds), rubric)
        return by_cases(judged, minutes=minutes, difficulty=difficulty, hints=hints)(limits)

    return register


# ------------------------------------------------------------------------------------------ rows, and limits


def every_one(
    points: float, hint: str = "Each micro-batch has one Forward and, after it, one Backward."
) -> Criterion:
    """At least as many micro-batches as stages."""
    usual = vary(stages=(2, 3), micro_batches=(4, 9))
    return Criterion("every micro-batch, once", points, hint, vary=usual)


def any_numbers(points: float, hint: str = "") -> Criterion:
    """Fewer micro-batches than stages, hardly more, one of either."""
    few = "There may be fewer micro-batches than stages, one stage, or one micro-batch."
    odd = vary(stages=(1, 5, 6), micro_batches=(1, 2, 3, 5)) + both(stages=1, micro_batches=1)
    return Criterion("any numbers", points, f"{few} {hint}".strip(), vary=odd)


def keeps_at_most(schedule: Sequence[Sequence[Action]], allowed: Sequence[int]) -> Finding:
    """Passes if no stage keeps more micro-batches' activations between two actions, counted in each chunk."""
    for stage, (actions, most) in enumerate(zip(schedule, allowed, strict=True)):
        if peak(list(actions)) > most:
            text = (
                f"stage {stage} keeps {peak(list(actions))} micro-batches at once; expected at most {most}."
            )
            return Finding(False, text)
    return Finding(True, f"the stages keep at most {', '.join(map(str, allowed))} micro-batches at once.")


def no_longer(timing: Timing, allowed: float, told: str = "") -> Finding:
    """Passes if a step takes at most `allowed` seconds."""
    text = f"{told}a step takes {timing.seconds:.4g} seconds; expected at most {allowed:.4g}."
    return Finding(timing.seconds <= allowed * (1 + 1e-9), text)


def ends_within(listed: Listed, allowed: float, message: float = 0.0) -> Finding:
    """Passes if a step takes at most `allowed` seconds, where all chunks take equally long."""
    forward, backward = (each / listed.step.pieces for each in listed.seconds)
    told = f"where a forward takes {forward:.4g} and a backward {backward:.4g} seconds"
    told += f", and a message {message:.4g}, " if message else ", "
    return no_longer(listed.timing(Costs(forward, backward, message=message)), allowed, told)


def as_fast_as_gpipe(tried: Tried[Step]) -> Finding:
    """Passes if a step of one chunk a stage takes as long as GPipe has to."""
    listed: Listed = tried.seen
    step = listed.step
    return ends_within(listed, (step.micro_batches + step.stages - 1) * sum(listed.seconds))
