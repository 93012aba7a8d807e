"""Whether a schedule can run at all, and why not: before any process is started."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from course_lib.training.pipeline.actions import (
    COMPUTING,
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


Place = tuple[int, int]
"""The stage, and the position among its actions."""


def check_schedule(schedule: Schedule, micro_batches: int, chunks: int = 1) -> list[Place]:
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


def waits_for(action: Action, stage: int, stages: int, chunks: int) -> Result | None:
    """The result that this action of a stage needs from the piece before or after; None if none."""
    piece = action.chunk * stages + stage
    if isinstance(action, Forward) and piece > 0:
        return Result((piece - 1) % stages, True, action.micro_batch, (piece - 1) // stages)
    if isinstance(action, Backward | BackwardInput) and piece < stages * chunks - 1:
        return Result((piece + 1) % stages, False, action.micro_batch, (piece + 1) // stages)
    return None


def result_of(action: Action, stage: int) -> Result | None:
    """What others may wait for, once this action of a stage is done; None if nobody does."""
    if isinstance(action, Forward | Backward | BackwardInput):
        return Result(stage, isinstance(action, Forward), action.micro_batch, action.chunk)
    return None


def _faults(actions: Sequence[Action], micro_batches: int, chunks: int) -> Iterator[str]:
    """What is wrong with one stage's actions by themselves, each the end of a sentence."""
    done: set[Action] = set()
    for position, action in enumerate(actions):
        if type(action) not in COMPUTING:
            yield f"lists {action!r}, which is none of {', '.join(kind.__name__ for kind in COMPUTING)}."
        elif not (0 <= action.micro_batch < micro_batches and 0 <= action.chunk < chunks):
            yield (
                f"lists {action!r}, but there are {micro_batches} micro-batches and {chunks} "
                f"{'chunk' if chunks == 1 else 'chunks'}, counted from 0."
            )
        elif action in done:
            yield f"does {action!r} twice, the second time as its action {position}."
        else:
            yield from _too_early(action, done)
        done.add(action)
    for micro_batch, chunk in product(range(micro_batches), range(chunks)):
        yield from _missing(Forward(micro_batch, chunk), done)


def _too_early(action: Action, done: set[Action]) -> Iterator[str]:
    """What should have come before this action, or not at all, given what is done."""
    where = (action.micro_batch, action.chunk)
    ended = {Backward(*where), BackwardInput(*where)} & done
    before = BackwardInput(*where) if isinstance(action, BackwardWeight) else Forward(*where)
    if isinstance(action, Forward):
        return
    if isinstance(action, Backward | BackwardInput) and ended:
        yield f"does {action!r} though it has done {ended.pop()!r}."
    elif isinstance(action, Recompute) and ended:
        yield f"does {action!r} after {ended.pop()!r}, when nobody needs it any more."
    elif before not in done:
        yield f"does {action!r} before {before!r}."


def _missing(forward: Forward, done: set[Action]) -> Iterator[str]:
    """What a stage never does for one micro-batch in one chunk."""
    where = (forward.micro_batch, forward.chunk)
    if forward not in done:
        yield f"never does {forward!r}."
    elif BackwardInput(*where) in done and BackwardWeight(*where) not in done:
        yield f"does {BackwardInput(*where)!r}, but never {BackwardWeight(*where)!r}."
    elif not {Backward(*where), BackwardInput(*where)} & done:
        yield f"never does {Backward(*where)!r}."


def _runnable(schedule: Schedule, chunks: int) -> list[Place]:
    """All places in an order in which they can run. Raises BadSchedule where stages wait in a circle."""
    stages = len(schedule)
    position = [0] * stages
    done: set[Result] = set()
    waiting: dict[Result, int] = {}
    order: list[Place] = []
    ready = list(reversed(range(stages)))
    while ready:
        stage = ready.pop()
        while position[stage] < len(schedule[stage]):
            action = schedule[stage][position[stage]]
            need = waits_for(action, stage, stages, chunks)
            if need is not None and need not in done:
                waiting[need] = stage
                break
            order.append((stage, position[stage]))
            position[stage] += 1
            result = result_of(action, stage)
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
            need = waits_for(action, stage, len(schedule), chunks)
            parts.append(f"stage {stage}, at {action!r}, waits for {need}")
    return f"Deadlock: {'; '.join(parts)}."
