"""Known calls go round torch's wrappers while ranks are captured: most of a message's time is spent in them.

While they are `installed`, `dist.send`, `recv`, `isend` and `irecv` are functions of this module. The first
call of a kind (same line, group, shape, dtype, tag) goes through torch's own function, with all its checks,
and is captured by `CaptureEngine.post`; its repetitions are captured at once. Whatever is out of the ordinary
goes the long way, and so do calls by names that were imported from `torch.distributed` before.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from course_lib.runtime.communication.callsite import caller_line, is_grader, is_library
from course_lib.runtime.simulator.engine import RankEngine
from course_lib.runtime.simulator.open_buffers import open_buffers
from course_lib.runtime.simulator.replaced import replaced
from course_lib.runtime.simulator.trace.program import POSITION_BITS, RANK_MASK, TraceProgram
from course_lib.runtime.simulator.works import SimulatedWork

_getframe = sys._getframe
_Kind = tuple[Any, ...]
"""Everything about a call that torch checks and the trace holds, but the peer."""


@contextmanager
def installed(engine: RankEngine, trace: TraceProgram) -> Iterator[None]:
    """Write to this trace by the short way what the engine writes by the long one."""
    short = _CallCache(engine, trace)
    functions = {
        "send": short.sending("send"),
        "isend": short.sending("isend"),
        "recv": short.receiving("recv"),
        "irecv": short.receiving("irecv"),
    }
    with ExitStack() as undo:
        undo.enter_context(_known_to_batches(functions))
        undo.enter_context(_cheap_checks_of_shapes())
        undo.enter_context(replaced(dist, **functions))
        yield


class CapturedWork:
    """The handle of a message that was captured by the short way.

    It passes for a `dist.Work`, and is none: a subclass takes several times as long to make.
    """

    __slots__ = ("_position", "_short", "_tensor")

    def __init__(self, short: "_CallCache", position: int, tensor: Tensor) -> None:
        self._short = short
        self._position = position
        self._tensor = tensor

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return SimulatedWork

    def wait(self, timeout: Any = None) -> bool:
        """Record that the rank waits."""
        frame, short = _getframe(1), self._short
        line = short.known_lines.get((id(frame.f_code), frame.f_lasti))
        if line is None:
            line = short.learn_line(frame)
        short.trace.program.append(~(line << POSITION_BITS | self._position))
        return True

    def __getattr__(self, name: str) -> Any:
        """Whatever else a handle can do, the full one does."""
        return getattr(self._short.full_work(self._position, self._tensor), name)


class _CallCache:
    """Short equivalents of the functions of `torch.distributed` that send and receive."""

    def __init__(self, engine: RankEngine, trace: TraceProgram) -> None:
        self._engine = engine
        self.trace = trace
        self._known: dict[_Kind, int] = {}
        """Kind of call -> the number that stands for it in a program if the peer is rank 0."""
        self.known_lines: dict[tuple[int, int], int] = {}
        """Code and place in it of a wait -> the place of its line on the trace."""
        self._codes: set[CodeType] = set()
        """The code objects whose ids are in use above; kept, so that no other gets the id."""
        self._unknown: _Kind | None = None
        """The kind of the last call that had to go the long way only because it was not known."""

    def sending(self, name: str) -> Callable[..., Any]:
        """The short `dist.send` or `dist.isend`."""
        long_way = getattr(distributed_c10d, name)
        blocking = name == "send"

        @wraps(long_way)
        def function(
            tensor: Tensor,
            dst: int | None = None,
            group: Any = None,
            tag: int = 0,
            group_dst: int | None = None,
        ) -> Any:
            frame = _getframe(1)
            position = self._record(name, blocking, tensor, dst, group_dst, group, tag, frame)
            if position < 0:
                return self._learn(frame.f_code, lambda: long_way(tensor, dst, group, tag, group_dst))
            return None if blocking else CapturedWork(self, position, tensor)

        return function

    def receiving(self, name: str) -> Callable[..., Any]:
        """The short `dist.recv` or `dist.irecv`."""
        long_way = getattr(distributed_c10d, name)
        blocking = name == "recv"

        @wraps(long_way)
        def function(
            tensor: Tensor,
            src: int | None = None,
            group: Any = None,
            tag: int = 0,
            group_src: int | None = None,
        ) -> Any:
            frame = _getframe(1)
            position = self._record(name, blocking, tensor, src, group_src, group, tag, frame)
            if position < 0:
                return self._learn(frame.f_code, lambda: long_way(tensor, src, group, tag, group_src))
            if not blocking:
                return CapturedWork(self, position, tensor)
            return self.trace.program[position] & RANK_MASK if src is None else src

        return function

    def learn_line(self, frame: FrameType) -> int:
        """The place on the trace of the line that a wait in this frame is told by."""
        place = self.trace.place_of_line(caller_line())
        if _is_own(frame.f_code):
            self._codes.add(frame.f_code)
            self.known_lines[id(frame.f_code), frame.f_lasti] = place
        return place

    def full_work(self, position: int, tensor: Tensor) -> SimulatedWork:
        """The full handle of the call that the rank has made at that position."""
        return SimulatedWork(self._engine, self.trace.operation_at(position), [tensor], open_buffers.get())

    def _record(
        self,
        name: str,
        blocking: bool,
        tensor: Tensor,
        peer: int | None,
        place: int | None,
        group: Any,
        tag: int,
        frame: FrameType,
    ) -> int:
        """Record a call, and if it is blocking a wait, if it is of a known kind and all is as usual.

        peer: the other side as a global rank; place: or as a place in the group. Returns the position in the
        program, or -1 if the call has to go the long way.
        """
        self._unknown = None
        default = distributed_c10d._world.default_pg
        if group is None:
            group = default
        if place is None and group is default:
            place = peer
        elif peer is not None:
            return -1
        try:
            kind = (
                name,
                group.call_group,
                id(frame.f_code),
                frame.f_lasti,
                type(tensor),
                tensor.shape,
                tensor.dtype,
                tag,
            )
            members = group.call_group.members
            usual = tensor.is_meta and tensor.is_contiguous() and 0 <= place < len(members)  # type: ignore[operator]
            if not usual or (blocking and place == group._group_rank):
                return -1
            number = self._known[kind]
            program = self.trace.program
            position = len(program)
            program.append(number + members[place])
        except KeyError:
            self._unknown = kind
            return -1
        except (AttributeError, TypeError):
            return -1
        if blocking:
            program.append(~position)
        return position

    def _learn(self, code: CodeType, long_way: Callable[[], Any]) -> Any:
        """Go the long way, and remember what it has captured, if the next call of the kind is the same."""
        kind = self._unknown
        position = len(self.trace.program)
        done = long_way()
        if kind is not None and len(self.trace.program) > position and _is_own(code):
            self._codes.add(code)
            number = self.trace.program[position]
            self._known[kind] = number & ~RANK_MASK
        return done


def _is_own(code: CodeType) -> bool:
    """Whether a call from this code is told by its own line, and not by that of who called it."""
    return not is_library(code.co_filename) and not is_grader(code.co_filename)


@contextmanager
def _known_to_batches(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let `dist.P2POp` take the short functions for torch's own, which alone it knows."""
    originals = {short: getattr(distributed_c10d, name) for name, short in functions.items()}
    make, check = dist.P2POp.__init__, distributed_c10d._check_op

    def init(self: dist.P2POp, op: Any, *arguments: Any, **options: Any) -> None:
        make(self, originals.get(op, op), *arguments, **options)

    with (
        replaced(dist.P2POp, __init__=init),
        replaced(distributed_c10d, _check_op=lambda op: check(originals.get(op, op))),
    ):
        yield


@contextmanager
def _cheap_checks_of_shapes() -> Iterator[None]:
    """Let `x += y` on meta tensors of one shape skip the search for their common shape: 4/5 of its time."""
    check: Callable[..., None] = torch._meta_registrations.check_inplace_broadcast

    def cheap(shape: Any, *others: Any) -> None:
        if others != (shape,):
            check(shape, *others)

    with replaced(torch._meta_registrations, check_inplace_broadcast=cheap):
        yield
