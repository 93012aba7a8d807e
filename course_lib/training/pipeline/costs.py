"""When each action of a schedule begins and ends, what share of the time is a bubble, what waits in memory.

The model: an action begins when the stage's action before it has ended and what it needs has arrived. A
stage computes one thing at a time; messages are sent in the background and do not hinder each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from course_lib.training.pipeline.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Recompute,
    Schedule,
)
from course_lib.training.pipeline.checking import Result, check_schedule

PerPiece = float | Sequence[float]
"""One number for all pieces of the model, or one for each, in the order of the pieces."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What the actions of one micro-batch take.

    forward, backward: seconds. input_share: of a backward, how much its first half takes. message: seconds
    from the end of an action until its result is there. activations: bytes that a forward keeps for
    backward. inputs: bytes that it keeps where it is recomputed.
    """

    forward: PerPiece = 1.0
    backward: PerPiece = 2.0
    input_share: PerPiece = 0.5
    message: float = 0.0
    activations: PerPiece = 1.0
    inputs: PerPiece = 0.0

    def seconds(self, action: Action, piece: int) -> float:
        """How long an action takes in a piece of the model."""
        if isinstance(action, (Forward, Recompute)):
            return _of(self.forward, piece)
        whole = _of(self.backward, piece)
        if isinstance(action, Backward):
            return whole
        first = _of(self.input_share, piece)
        return whole * (first if isinstance(action, BackwardInput) else 1 - first)


def _of(given: PerPiece, piece: int) -> float:
    return given if isinstance(given, int | float) else given[piece]


@dataclass(frozen=True, slots=True)
class Timed:
    """An action of a stage, and when it begins and ends, in seconds."""

    stage: int
    action: Action
    begin: float
    end: float


@dataclass(frozen=True)
class Timing:
    """A schedule in time: for each stage its actions, in order."""

    stages: tuple[tuple[Timed, ...], ...]
    chunks: int
    costs: Costs

    @cached_property
    def seconds(self) -> float:
        """From the first action's begin to the last one's end."""
        return max((row[-1].end for row in self.stages if row), default=0.0)

    @cached_property
    def bubble(self) -> float:
        """The share of all stages' time in which they compute nothing. Recomputing is computing."""
        busy = sum(timed.end - timed.begin for row in self.stages for timed in row)
        return 1 - busy / (len(self.stages) * self.seconds)

    @cached_property
    def peaks(self) -> list[float]:
        """For each stage the most bytes of activations that it holds at once."""
        return [
            max((held for _, held in self.memory(stage)), default=0.0) for stage in range(len(self.stages))
        ]

    def memory(self, stage: int) -> list[tuple[float, float]]:
        """(seconds, bytes): from this moment on the stage holds so much, in order of time.

        A forward takes its bytes when it begins; where it is recomputed later, it leaves only its inputs. A
        backward gives all back when it ends, of two halves the second.
        """
        held, steps = 0.0, {0.0: 0.0}
        # What is given back comes before what is taken at the same moment.
        for seconds, change in sorted(_changes(self, stage)):
            held += change
            steps[seconds] = held
        return list(steps.items())


def cost(schedule: Schedule, micro_batches: int, costs: Costs | None = None, chunks: int = 1) -> Timing:
    """When each action of a schedule runs. Raises BadSchedule where it cannot."""
    costs = costs or Costs()
    stages = len(schedule)
    rows: list[list[Timed]] = [[] for _ in schedule]
    arrives: dict[Result, float] = {}
    for stage, action, need, result in check_schedule(schedule, micro_batches, chunks):
        row = rows[stage]
        begin = row[-1].end if row else 0.0
        if need is not None:
            # What a stage sends to itself is there at once.
            begin = max(begin, arrives[need] + (costs.message if need.stage != stage else 0.0))
        end = begin + costs.seconds(action, action.chunk * stages + stage)
        row.append(Timed(stage, action, begin, end))
        if result is not None:
            arrives[result] = end
    return Timing(tuple(map(tuple, rows)), chunks, costs)


def _changes(timing: Timing, stage: int) -> Iterator[tuple[float, float]]:
    """(seconds, bytes) of all that takes memory or gives it back."""
    row = timing.stages[stage]
    again = {
        (timed.action.micro_batch, timed.action.chunk) for timed in row if isinstance(timed.action, Recompute)
    }
    for timed in row:
        piece = timed.action.chunk * len(timing.stages) + stage
        whole, inputs = _of(timing.costs.activations, piece), _of(timing.costs.inputs, piece)
        recomputed = (timed.action.micro_batch, timed.action.chunk) in again
        match timed.action:
            case Forward():
                yield timed.begin, whole
                if recomputed:
                    yield timed.end, inputs - whole
            case Recompute():
                yield timed.begin, whole - inputs
            case Backward() | BackwardWeight():
                yield timed.end, -whole
