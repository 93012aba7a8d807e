"""When each stage of a plan does what: its schedule is gone through with one rank for each stage.

What stages compute, call and send comes with its seconds. A stage does one thing at a time; messages pass
meanwhile. But a collective of a rank waits until the rank's messages have passed, and they until it is over,
as on one NCCL stream: that is the simulator's rule (`course_lib.runtime.simulator.network_model`), and it is
why tensor parallelism within stages hides few of the messages between them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.training.pipeline.actions import (
    COMPUTING,
    Action,
    Forward,
    ReceiveActivation,
    ReceiveGradient,
    Schedule,
    SendActivation,
    SendGradient,
    with_messages,
)


class Part(NamedTuple):
    """Seconds of computing, and then of a collective; 0 where there is none."""

    computing: float
    calling: float


@dataclass(frozen=True, slots=True)
class StageParts:
    """What a stage does for one micro-batch, in order."""

    forward: tuple[Part, ...]
    backward: tuple[Part, ...]

    @property
    def seconds(self) -> tuple[float, float]:
        """Of a forward and of a backward that waits for nobody."""
        forward, backward = (sum(map(sum, parts)) for parts in (self.forward, self.backward))
        return forward, backward


class Crossing(NamedTuple):
    """A message between neighbours: its latency, and for how long it keeps their ways busy, in seconds."""

    latency: float
    passing: float


Message = tuple[bool, int, int]
"""Whether it is a gradient, its micro-batch, and its cut."""

RECEIVING = (ReceiveActivation, ReceiveGradient)


@dataclass(slots=True)
class _Rank:
    """A stage's rank: its clock, and from when on its way out and its way in are free."""

    clock: float = 0.0
    out: float = 0.0
    into: float = 0.0
    waits_for: Message | None = None


class Rehearsal:
    """A schedule gone through. ends: when each stage has done all of its actions, in seconds."""

    def __init__(
        self, schedule: Schedule, parts: Sequence[StageParts], crossings: Sequence[Crossing]
    ) -> None:
        """crossings: of the cuts, the first of them between stages 0 and 1."""
        self._schedule, self._parts, self._crossings = schedule, parts, crossings
        self._ranks = [_Rank() for _ in schedule]
        self._sent: dict[Message, float] = {}
        self._opened: dict[Message, float] = {}
        self._arrived: dict[Message, float] = {}
        self._run()
        self.ends = [rank.clock for rank in self._ranks]

    def _run(self) -> None:
        """Who can go on, and is the earliest, takes its next step."""
        steps = {stage: self._steps(stage) for stage in range(len(self._ranks))}
        while steps:
            known = ((self._ready(stage), stage) for stage in steps)
            moment, stage = min((ready, stage) for ready, stage in known if ready is not None)
            rank = self._ranks[stage]
            rank.clock, rank.waits_for = moment, None
            try:
                rank.waits_for = next(steps[stage])
            except StopIteration:
                del steps[stage]

    def _ready(self, stage: int) -> float | None:
        """When the stage can go on; None if nobody knows yet."""
        rank = self._ranks[stage]
        if rank.waits_for is None:
            return rank.clock
        arrived = self._arrived.get(rank.waits_for)
        return None if arrived is None else max(rank.clock, arrived)

    def _steps(self, stage: int) -> Iterator[Message | None]:
        """What a stage does, as `Stage` does it: each item is a turn, or a message that it waits for."""
        rank, sent = self._ranks[stage], []
        todo = list(with_messages(self._schedule[stage], stage, len(self._schedule)))
        for place, action in enumerate(todo):
            if isinstance(action, COMPUTING):
                self._open_next(todo, place, stage)
                yield from self._parts_done(rank, stage, action)
            elif isinstance(action, RECEIVING):
                self._open(_message(action, stage), stage)
                yield _message(action, stage)
            else:
                sent.append(_message(action, stage))
                self._sent[sent[-1]] = rank.clock
                self._pass(sent[-1])
        yield from sent

    def _parts_done(self, rank: _Rank, stage: int, action: Action) -> Iterator[None]:
        own = self._parts[stage]
        for computing, calling in own.forward if isinstance(action, Forward) else own.backward:
            rank.clock += computing
            yield None
            if calling:
                rank.clock = rank.out = rank.into = max(rank.clock, rank.out, rank.into) + calling

    def _open_next(self, todo: Sequence[Action], place: int, stage: int) -> None:
        """What the next computation needs is received during this one."""
        for action in todo[place + 1 :]:
            if isinstance(action, COMPUTING):
                return
            if isinstance(action, RECEIVING):
                self._open(_message(action, stage), stage)

    def _open(self, message: Message, stage: int) -> None:
        if message not in self._opened:
            self._opened[message] = self._ranks[stage].clock
            self._pass(message)

    def _pass(self, message: Message) -> None:
        """A message starts when both sides are there and their ways are free."""
        if message not in self._sent or message not in self._opened:
            return
        back, _, cut = message
        source, target = (cut, cut - 1) if back else (cut - 1, cut)
        sender, receiver = self._ranks[source], self._ranks[target]
        latency, passing = self._crossings[cut - 1]
        begin = max(self._sent[message], self._opened[message], sender.out, receiver.into)
        sender.out = receiver.into = begin + passing
        self._arrived[message] = begin + passing + latency


def _message(action: Action, stage: int) -> Message:
    """The message that a stage sends or receives: cut k lies before stage k."""
    back = isinstance(action, ReceiveGradient | SendGradient)
    after = isinstance(action, SendActivation | ReceiveGradient)
    return back, action.micro_batch, stage + after
