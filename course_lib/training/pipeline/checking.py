"""Whether a schedule can run at all, and why not: before any process is started."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from course_lib.training.pipeline.actions import (
    COMPUTING,
    RETURNING,
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Recompute,
    Schedule,
)


class BadSchedule(ValueError):
    """A schedule that loses work, does it twice, or waits for ever. Its message says where."""


class Turn(NamedTuple):
    """An action of a stage, what it needs of another one, and what others may need of it, if anything."""

    stage: int
    action: Action
    need: "Result | None"
    result: "Result | None"


def check_schedule(schedule: Schedule, micro_batches: int, chunks: int = 1) -> list[Turn]:
    """An order in which all actions can run, one after another. chunks: pieces of the model a stage.

    Raises BadSchedule unless every chunk does Forward and then Backward, or its two halves, once for every
    micro-batch, and no stage waits for ever.
    """
    for stage, actions in enumerate(schedule):
        for sentence in _faults(actions, micro_batches, chunks):
            raise BadSchedule(f"Stage {stage} of {len(schedule)} {sentence}")
    return _runnable(schedule, chunks)


class Result(NamedTuple):
    """What a stage may wait for: that another one has done a forward, or the first half of a backward."""

    stage: int
    forward: bool
    micro_batch: int
    chunk: int

    def __str__(self) -> str:
        kind = Forward if self.forward else Backward
        return f"{kind(self.micro_batch, self.chunk)!r} of stage {self.stage}"


def _waits_for(action: Action, stage: int, stages: int, chunks: int) -> Result | None:
    """The result that this action of a stage needs from the piece before or after; None if none."""
    piece = action.chunk * stages + stage
    if isinstance(action, Forward) and piece > 0:
        return Result((piece - 1) % stages, True, action.micro_batch, (piece - 1) // stages)
    if isinstance(action, RETURNING) and piece < stages * chunks - 1:
        return Result((piece + 1) % stages, False, action.micro_batch, (piece + 1) // stages)
    return None


def _result_of(action: Action, stage: int) -> Result | None:
    """What others may wait for, once this action of a stage is done; None if nobody does."""
    forward = isinstance(action, Forward)
    if forward or isinstance(action, RETURNING):
        return Result(stage, forward, action.micro_batch, action.chunk)
    return None


Done = set[tuple[type[Action], int, int]]
"""Kind, micro-batch and chunk of each action. Tuples, for there may be tens of thousands to look up."""


def _faults(actions: Sequence[Action], micro_batches: int, chunks: int) -> Iterator[str]:
    """What is wrong with one stage's actions by themselves, each the end of a sentence."""
    done: Done = set()
    for position, action in enumerate(actions):
        kind = type(action)
        if kind not in COMPUTING:
            yield f"lists {action!r}, which is none of {', '.join(each.__name__ for each in COMPUTING)}."
        number, chunk = action.micro_batch, action.chunk
        if not (0 <= number < micro_batches and 0 <= chunk < chunks):
            yield (
                f"lists {action!r}, but there are {micro_batches} micro-batches and {chunks} "
                f"{'chunk' if chunks == 1 else 'chunks'}, counted from 0."
            )
        elif (kind, number, chunk) in done:
            yield f"does {action!r} twice, the second time as its action {position}."
        elif kind is not Forward:
            yield from _out_of_order(action, done)
        done.add((kind, number, chunk))
    for number, chunk in product(range(micro_batches), range(chunks)):
        yield from _missing(number, chunk, done)


def _out_of_order(action: Action, done: Done) -> Iterator[str]:
    """What should have come before this action, which is no forward, or not at all, given what is done."""
    number, chunk = action.micro_batch, action.chunk
    ended = [kind for kind in RETURNING if (kind, number, chunk) in done]
    before = BackwardInput if isinstance(action, BackwardWeight) else Forward
    if ended and isinstance(action, RETURNING):
        yield f"does {action!r} though it has done {ended[0](number, chunk)!r}."
    elif ended and isinstance(action, Recompute):
        yield f"does {action!r} after {ended[0](number, chunk)!r}, when nobody needs it any more."
    elif (before, number, chunk) not in done:
        yield f"does {action!r} before {before(number, chunk)!r}."


def _missing(number: int, chunk: int, done: Done) -> Iterator[str]:
    """What a stage never does for one micro-batch in one chunk."""
    if (Forward, number, chunk) not in done:
        yield f"never does {Forward(number, chunk)!r}."
    elif (BackwardInput, number, chunk) in done and (BackwardWeight, number, chunk) not in done:
        yield f"does {BackwardInput(number, chunk)!r}, but never {BackwardWeight(number, chunk)!r}."
    elif not any((kind, number, chunk) in done for kind in RETURNING):
        yield f"never does {Backward(number, chunk)!r}."


def _runnable(schedule: Schedule, chunks: int) -> list[Turn]:
    """All actions in an order in which they can run. Raises BadSchedule where stages wait in a circle."""
    stages = len(schedule)
    position = [0] * stages
    done: set[Result] = set()
    waiting: dict[Result, int] = {}
    order: list[Turn] = []
    ready = list(reversed(range(stages)))
    while ready:
        stage = ready.pop()
        while position[stage] < len(schedule[stage]):
            action = schedule[stage][position[stage]]
            need = _waits_for(action, stage, stages, chunks)
            if need is not None and need not in done:
                waiting[need] = stage
                break
            result = _result_of(action, stage)
            order.append(Turn(stage, action, need, result))
            position[stage] += 1
            if result is not None:
                done.add(result)
                if result in waiting:
                    ready.append(waiting.pop(result))
    if len(order) < sum(map(len, schedule)):
        raise BadSchedule(_deadlock(schedule, position, chunks))
    return order


def _deadlock(schedule: Schedule, position: Sequence[int], chunks: int) -> str:
    """Who waits for whom, as a sentence: each stage that stands still is at `position` of its actions."""
    parts = []
    for stage, actions in enumerate(schedule):
        if position[stage] < len(actions):
            action = actions[position[stage]]
            need = _waits_for(action, stage, len(schedule), chunks)
            parts.append(f"stage {stage}, at {action!r}, waits for {need}")
    return f"Deadlock: {'; '.join(parts)}."
