"""What a stage of a pipeline does, as data: a schedule is a list of actions, and none of them runs by itself.

A model is cut into pieces, in order; piece k is chunk k // stages of stage k % stages, so that with one chunk
a stage pieces and stages have the same numbers. A schedule lists what a stage computes. Messages follow from
it: `with_messages` adds them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Action:
    """Something that a stage does for one micro-batch, in one of its chunks of the model, both from 0."""

    micro_batch: int
    chunk: int = 0

    def __hash__(self) -> int:
        """With the kind in it: else an action and its backward met in one slot of every set."""
        return hash((type(self), self.micro_batch, self.chunk))

    def __repr__(self) -> str:
        """`Forward(3)`, and `Forward(3, chunk=1)`."""
        chunk = f", chunk={self.chunk}" if self.chunk else ""
        return f"{type(self).__name__}({self.micro_batch}{chunk})"


class Forward(Action):
    """Compute the chunk's output, and keep what backward needs of it."""

    __slots__ = ()


class Backward(Action):
    """From the gradient of the chunk's output, compute the gradients of its input and of its weights."""

    __slots__ = ()


class BackwardInput(Action):
    """The first half of a backward: the gradient of the chunk's input, for which the stage before waits."""

    __slots__ = ()


class BackwardWeight(Action):
    """The second half: the gradients of the chunk's weights, for which nobody waits before the step ends."""

    __slots__ = ()


class Recompute(Action):
    """Compute the chunk's output once more, before its backward; then Forward keeps its input only."""

    __slots__ = ()


class ReceiveActivation(Action):
    """Receive the chunk's input from the stage that has the piece before."""

    __slots__ = ()


class SendActivation(Action):
    """Send the chunk's output to the stage that has the next piece."""

    __slots__ = ()


class ReceiveGradient(Action):
    """Receive the gradient of the chunk's output from the stage that has the next piece."""

    __slots__ = ()


class SendGradient(Action):
    """Send the gradient of the chunk's input to the stage that has the piece before."""

    __slots__ = ()


COMPUTING = (Forward, Backward, BackwardInput, BackwardWeight, Recompute)
"""The kinds of which a schedule consists."""

RETURNING = (Backward, BackwardInput)
"""Those that compute the gradient of a chunk's input, for which the piece before waits."""

Schedule = Sequence[Sequence[Action]]
"""For each stage what it computes, in order."""

Plan = Callable[..., Iterable[Action]]
"""plan(stage, stages, micro_batches, **options): what one stage computes, in order."""


def schedule_of(plan: Plan, stages: int, micro_batches: int, **options: object) -> list[list[Action]]:
    """The whole schedule of a plan, stage by stage. options: passed on, such as `chunks`."""
    return [list(plan(stage, stages, micro_batches, **options)) for stage in range(stages)]


def with_messages(actions: Iterable[Action], stage: int, stages: int, chunks: int = 1) -> Iterator[Action]:
    """A stage's actions with its messages: each is received just before it is needed, and sent at once."""
    last = stages * chunks - 1
    for action in actions:
        where, piece = (action.micro_batch, action.chunk), action.chunk * stages + stage
        backward = isinstance(action, RETURNING)
        if isinstance(action, Forward) and piece > 0:
            yield ReceiveActivation(*where)
        if backward and piece < last:
            yield ReceiveGradient(*where)
        yield action
        if isinstance(action, Forward) and piece < last:
            yield SendActivation(*where)
        if backward and piece > 0:
            yield SendGradient(*where)
