"""A communication call: what it is for everyone who makes it, and what becomes of one rank's.

Calls that are alike share one `Call`; an `Operation` is a rank's call from its post to its completion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.runtime.communication.costs import CallTraffic, traffic_of, uneven_all_to_all_traffic
from course_lib.runtime.communication.events import Event, Kind, SourceLine

NEW_GROUP = "new_group"
"""The making of a group, in which all ranks take part with the same list of ranks. No event shows it."""

ROOT_WORDS = {"broadcast": "from", "scatter": "from", "gather": "to", "gather_single": "to", "reduce": "to"}

_MESSAGES = ("send", "recv")

Shape = tuple[torch.dtype, tuple[int, ...]]
Parts = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A process group. Ranks speak in the same group if they hold the same object (`CallMatcher.group`)."""

    name: str
    members: tuple[int, ...]
    """Global ranks, in the order of the group."""


# A NamedTuple is made in a quarter of a frozen dataclass's time, and one is made for each message.
class Call(NamedTuple):
    """What a call is, whichever rank makes it and to whichever peer."""

    op: str
    """Its name in `torch.distributed`: "send", "all_reduce" ..."""
    group: Group
    root: int | None = None
    """Global rank."""
    tag: int = 0
    reduction: str = ""
    """How a collective combines; for the making of a group, its ranks."""
    shape: Shape | None = None
    """Dtype and shape of the tensor that the call is about."""
    parts: Parts | None = None
    """For an all-to-all: bytes for and from each rank of the group."""
    nbytes: int = 0
    strides: tuple[int, ...] | None = None
    """Of its tensors, where it matters and they are not contiguous: see `tensor_checks.common_strides`."""
    shape_only: bool = False
    """Its tensors are meta tensors: they have a shape and no data, so nothing is moved."""
    asynchronous: bool = False
    line: SourceLine | None = None

    @property
    def is_message(self) -> bool:
        """Whether it has one other side, and not a whole group."""
        return self.op in _MESSAGES

    @property
    def signature(self) -> tuple[object, ...]:
        """What all members of a collective must agree on. The parts of an all-to-all differ by right."""
        shape = self.shape if self.parts is None else None
        return (self.op, self.reduction, self.root, shape, self.strides, self.shape_only)

    @property
    def message_type(self) -> tuple[torch.dtype, int, bool]:
        """What a send and its receive must agree on: dtype and size, and whether there is data at all."""
        assert self.shape is not None
        return (self.shape[0], self.nbytes, self.shape_only)

    def same_message(self, other: "Call") -> bool:
        """Whether the message types are the same: those of a send and its receive most often are alike."""
        alike = self.shape == other.shape and self.shape_only == other.shape_only
        return alike or self.message_type == other.message_type

    @property
    def detail(self) -> str:
        """What the call is about: `float32[4], SUM`."""
        return _detail(self.shape, self.strides, self.shape_only, self.reduction, self.parts)

    def operation(
        self,
        rank: int,
        peer: int | None = None,
        inputs: tuple[Tensor, ...] = (),
        outputs: tuple[Tensor, ...] = (),
    ) -> "Operation":
        """The call as made by a rank. peer: a message's other side; None for a receive from anyone."""
        return Operation(self, rank, peer if self.op in _MESSAGES else self.root, inputs, outputs)


@dataclass(slots=True, eq=False)
class Operation:
    """One call of one rank, from its post to its completion.

    inputs and outputs are the caller's own tensors, let go on completion. `end` is set when `done` is.
    """

    call: Call
    rank: int
    peer: int | None = None
    """Global rank of the other side or of the root; None for a receive from anyone."""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    posted: float = 0.0
    landing: tuple[Tensor, ...] = ()
    """The caller's tensors while `outputs` are copies: an asynchronous call fills them when waited for."""
    awaited: bool = False
    """Whether its rank has waited for it, or has been told that it is over."""
    done: bool = False
    end: float = 0.0
    arrival: float = 0.0
    """When a buffered message reaches its receiver; its send has ended long before."""
    sequence: int = 0

    def __str__(self) -> str:
        """The call for people: `recv(float32[4]) from rank 1, tag 0`, `broadcast(float32[4]) from rank 0`."""
        call = self.call
        text = f"{call.op}({call.detail})"
        if call.op == "send":
            return f"{text} to rank {self.peer}, tag {call.tag}"
        if call.op == "recv":
            source = "any rank" if self.peer is None else f"rank {self.peer}"
            return f"{text} from {source}, tag {call.tag}"
        if self.peer is not None:
            text += f" {ROOT_WORDS.get(call.op, 'at')} rank {self.peer}"
        return text

    def event(self) -> Event:
        """The operation as it stands; one that never completed ends where it began."""
        call = self.call
        sent, received, messages = self._traffic()
        return Event(
            rank=self.rank,
            op=call.op,
            kind=Kind.POINT_TO_POINT if call.is_message else Kind.COLLECTIVE,
            start=self.posted,
            end=max(self.end, self.posted),
            sequence=self.sequence,
            nbytes=call.nbytes,
            sent=sent,
            received=received,
            messages=messages,
            peer=self.peer,
            group=call.group.members,
            tag=call.tag,
            asynchronous=call.asynchronous,
            detail=call.detail,
            line=call.line,
            finished=self.done or self.end > 0,
        )

    def _traffic(self) -> CallTraffic:
        """Bytes and messages, whether or not it was matched: a message offered is a message sent."""
        op, nbytes, members = self.call.op, self.call.nbytes, self.call.group.members
        if op == "send":
            return CallTraffic(nbytes, 0, 1)
        if op == "recv":
            return CallTraffic(0, nbytes, 0)
        position = members.index(self.rank)
        if self.call.parts is not None:
            return uneven_all_to_all_traffic(*self.call.parts, position)
        root = 0 if self.peer is None else members.index(self.peer)
        return traffic_of(op, nbytes, len(members), position, root)


class Payload(NamedTuple):
    """What a call is about; see `Call`."""

    shape: Shape | None
    parts: Parts | None
    nbytes: int


def payload_of(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Payload:
    """What a call with these tensors is about; the parts of one tensor are given one by one."""
    # Only the root of a scatter has inputs, and a reduce-scatter's are as many as there are members.
    about = outputs if op in ("recv", "scatter") or op.startswith("reduce_scatter") else inputs
    exchange = op in ("all_to_all", "all_to_all_single")
    return Payload(
        _common_shape(about),
        (_bytes(inputs), _bytes(outputs)) if exchange else None,
        sum(_bytes(about if op in ("recv", "scatter") else inputs)),
    )


def _common_shape(tensors: Sequence[Tensor]) -> Shape | None:
    """Dtype and shape of the one tensor; of several, their number of elements together."""
    if not tensors:
        return None
    if len(tensors) == 1:
        return (tensors[0].dtype, tuple(tensors[0].shape))
    return (tensors[0].dtype, (sum(tensor.numel() for tensor in tensors),))


def _bytes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(tensor.nbytes for tensor in tensors)


@lru_cache(maxsize=4096)
def _detail(
    shape: Shape | None,
    strides: tuple[int, ...] | None,
    shape_only: bool,
    reduction: str,
    parts: Parts | None,
) -> str:
    words = [] if shape is None else [f"{str(shape[0]).removeprefix('torch.')}{list(shape[1])}"]
    if strides is not None:
        words.append(f"strides {list(strides)}")
    if shape_only:
        words.append("meta")
    if reduction:
        words.append(reduction)
    if parts is not None:
        sent, received = parts
        words.append(f"sends {list(sent)} bytes, receives {list(received)} bytes")
    return ", ".join(words)
