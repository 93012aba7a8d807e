"""Unit 05: schedules as they come back from an answer, and what is asked of all of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.training.pipeline.actions import (
    COMPUTING,
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Recompute,
)
from course_lib.training.pipeline.checking import BadSchedule, check_schedule
from course_lib.training.pipeline.costs import Costs, Timing, cost
from graders.grading.kit import Answer, Finding, Rng, compare
from graders.units.unit_05 import drivers

KINDS = {kind.__name__: kind for kind in COMPUTING}


@dataclass(frozen=True, slots=True)
class Case:
    """chunks: 0 where the answer is not asked for any, and has one."""

    stages: int
    micro_batches: int
    chunks: int = 0

    @property
    def pieces(self) -> int:
        """Chunks that each stage has."""
        return max(1, self.chunks)

    @property
    def options(self) -> list[int]:
        """What the answer is told after the stage."""
        return [self.stages, self.micro_batches, *([self.chunks] if self.chunks else [])]

    def __str__(self) -> str:
        chunks = f" of {compare.counted(self.chunks, 'chunk')} each" if self.chunks else ""
        return (
            f"with {compare.counted(self.stages, 'stage')}{chunks} and {_micro_batches(self.micro_batches)}"
        )


def _micro_batches(number: int | str) -> str:
    return f"{number} micro-batch{'' if number in (1, '1') else 'es'}"


@dataclass(frozen=True, slots=True)
class Listed:
    """What an answer lists for a case. fault: why that cannot run; empty if it can."""

    case: Case
    schedule: list[list[Action]]
    fault: str

    def timing(self, costs: Costs) -> Timing:
        return cost(self.schedule, self.case.micro_batches, costs, self.case.pieces)


WHOLE: tuple[type[Action], ...] = (Forward, Backward)
HALVES: tuple[type[Action], ...] = (Forward, BackwardInput, BackwardWeight)


def listed(answer: Answer, cases: Sequence[Case], kinds: tuple[type[Action], ...] = WHOLE) -> list[Listed]:
    """The answer's schedule for each case, stage by stage. kinds: those of which it has to consist."""
    plain = answer.call(drivers.schedules, [case.options for case in cases])
    return [read(case, stages, kinds) for stages, case in compare.side_by_side(plain, cases)]


def read(case: Case, stages: Sequence[Any], kinds: tuple[type[Action], ...] = COMPUTING) -> Listed:
    """A schedule from the plain data that a driver makes of it; from anything else, one that cannot run.

    Actions of other kinds than those allowed are such a fault too.
    """
    schedule: list[list[Action]] = []
    for stage, (plain, _) in enumerate(compare.side_by_side(stages, range(case.stages))):
        actions = [action_of(each) for each in plain]
        for action, each in zip(actions, plain, strict=True):
            if type(action) not in kinds:
                names = ", ".join(kind.__name__ for kind in kinds)
                shown = compare.shown(each if action is None else action)
                return Listed(case, [], f"Stage {stage} lists {shown}; expected are {names}.")
        schedule.append([action for action in actions if action is not None])
    try:
        check_schedule(schedule, case.micro_batches, case.pieces)
    except BadSchedule as error:
        return Listed(case, schedule, str(error))
    return Listed(case, schedule, "")


def action_of(plain: Any) -> Action | None:
    """The action that `drivers.plain_action` made plain; None if it is none."""
    if type(plain) is not list or [type(part) for part in plain] != [str, int, int] or plain[0] not in KINDS:
        return None
    kind, micro_batch, chunk = plain
    return KINDS[kind](micro_batch, chunk)


def plain_of(actions: Iterable[Action]) -> list[list[Any]]:
    """Actions as `drivers.action_from` reads them."""
    return [[type(action).__name__, action.micro_batch, action.chunk] for action in actions]


def all_run(schedules: Iterable[Listed]) -> Finding:
    """Passes if every schedule can run: nothing lost, nothing twice, nobody waits for ever."""
    return compare.first_failure(
        (Finding(not each.fault, f"{each.case}: {each.fault}") for each in schedules),
        "Every stage does each micro-batch once, and nobody waits for ever.",
    )


def all_that_run(schedules: Iterable[Listed], check: Callable[[Listed], Finding]) -> Finding:
    """`check` for every schedule; one that cannot run fails."""
    return compare.first_failure(
        Finding(False, f"{each.case}: {each.fault}") if each.fault else check(each) for each in schedules
    )


def no_longer(each: Listed, costs: Costs, allowed: float) -> Finding:
    """Passes if the schedule takes at most `allowed` seconds."""
    timing = each.timing(costs)
    told = ""
    if isinstance(costs.forward, float) and isinstance(costs.backward, float):
        told = f", where a forward takes {costs.forward:.4g} and a backward {costs.backward:.4g} seconds,"
    text = f"{each.case}{told} a step takes {timing.seconds:.4g} seconds"
    return Finding(timing.seconds <= allowed * (1 + 1e-9), f"{text}; expected at most {allowed:.4g}.")


def peak(actions: Sequence[Action]) -> int:
    """Of all moments the most micro-batches that are kept and not yet freed."""
    kept: dict[tuple[int, int], tuple[int, int]] = {}
    for moment, action in enumerate(actions):
        where = (action.micro_batch, action.chunk)
        if isinstance(action, Forward | Recompute):
            kept[where] = (moment, len(actions))
        elif isinstance(action, Backward | BackwardWeight):
            kept[where] = (kept[where][0], moment)
    counts = (sum(begin <= now < end for begin, end in kept.values()) for now in range(len(actions)))
    return max(counts, default=0)


def keeps_at_most(each: Listed, allowed: Sequence[int]) -> Finding:
    """Passes if no stage keeps more micro-batches' activations between two actions, counted in each chunk."""
    for stage, (actions, most) in enumerate(zip(each.schedule, allowed, strict=True)):
        if peak(actions) > most:
            text = f"{each.case} stage {stage} keeps {_micro_batches(peak(actions))} at once"
            return Finding(False, f"{text}; expected at most {most}.")
    told = _micro_batches(", ".join(map(str, allowed)))
    return Finding(True, f"{each.case} the stages keep at most {told} at once.")


def drawn_seconds(rng: Rng) -> tuple[float, float]:
    """What a micro-batch takes on a stage, forward and backward."""
    return rng.integer(2, 9) / 8, rng.integer(2, 20) / 8


def no_longer_than_gpipe(each: Listed, seconds: tuple[float, float]) -> Finding:
    """Passes if a step of one chunk a stage takes as long as GPipe has to. seconds: as `drawn_seconds`."""
    return no_longer(each, Costs(*seconds), (each.case.micro_batches + each.case.stages - 1) * sum(seconds))


def few(rng: Rng) -> list[Case]:
    """One stage, one micro-batch, fewer micro-batches than stages, and no multiple."""
    stages = rng.integer(4, 6)
    return [
        Case(1, 1),
        Case(1, rng.integer(2, 4)),
        Case(rng.integer(3, 5), 1),
        Case(stages, rng.integer(2, stages - 1)),
        Case(stages, stages + 1),
    ]


def many(rng: Rng) -> list[Case]:
    """At least as many micro-batches as stages."""
    stages = rng.integer(3, 5)
    return [Case(2, rng.integer(4, 7)), Case(stages, stages), Case(stages, stages + rng.integer(1, 4))]


def running(odd: list[Listed], usual: list[Listed]) -> list[Listed]:
    """What else is judged: of the odd cases those that run, since the others have cost points already."""
    return [*(each for each in odd if not each.fault), *usual]
