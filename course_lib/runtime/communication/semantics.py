"""What each collective does to the tensors of its members: the meaning, without messages or time.

The functions get the members' tensors in the order of the group. Sums are taken in that order, so that a run
repeats itself bit for bit.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from course_lib.runtime.communication.call import NEW_GROUP, Operation


class PartsDiffer(ValueError):
    """A part that one rank sends is not as large as its receiver expects."""


class MemberTensors(Protocol):
    """What one member gives to a collective, and what it is to fill: an `Operation`, or a part of one."""

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...

    @property
    def outputs(self) -> tuple[Tensor, ...]: ...


Move = Callable[[Sequence[MemberTensors]], None]
"""Moves the data of one collective, given the members' tensors in the order of the group."""

Reduction = Callable[[Tensor, Tensor], Tensor]

REDUCTIONS: dict[str, Reduction] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def reduction_name(op: Any) -> str:
    """ "SUM", "AVG" ... of a ReduceOp in either of the forms that torch uses."""
    return str(getattr(op, "op", op)).rsplit(".", 1)[-1]


@cache
def check_reducible(op: str, reduction: str, dtype: torch.dtype) -> None:
    """Raise ValueError if only NCCL has the reduction, TypeError if torch cannot combine the dtype by it."""
    kind = str(dtype).removeprefix("torch.")
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"{op} cannot combine by {reduction} here: of all backends only NCCL can. For a sum of scaled "
            f"tensors, scale before the call."
        )
    if reduction == "AVG" and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(
            f"{op} cannot average {kind}: the mean of whole numbers need not be one. Convert the tensor "
            f"first, for example to float32."
        )
    try:
        # Tried once in a process; that must not count as computing of the rank that happens to ask first.
        with _disable_current_modes():
            REDUCTIONS[reduction](torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype))
    except RuntimeError:
        raise TypeError(
            f"{op} cannot combine {kind} by {reduction}: torch has no such operation on tensors of {kind}. "
            f"Convert the tensor first, for a sum to float32, and the result back."
        ) from None


def broadcast(root: int) -> Move:
    """Every member's tensors become those of the member at position `root`."""

    def move(calls: Sequence[MemberTensors]) -> None:
        sources = calls[root].inputs
        for call in calls:
            for target, source in zip(call.outputs, sources, strict=True):
                if target is not source:
                    _put(target, source)

    return move


def all_reduce(op: str) -> Move:
    """Every member's tensors become the reduction over the members."""

    def move(calls: Sequence[MemberTensors]) -> None:
        for index in range(len(calls[0].inputs)):
            total = _reduced([call.inputs[index] for call in calls], op)
            for call in calls:
                _put(call.outputs[index], total)

    return move


def reduce(root: int, op: str) -> Move:
    """The tensor of the member at position `root` becomes the reduction; the others keep theirs."""

    def move(calls: Sequence[MemberTensors]) -> None:
        _put(calls[root].outputs[0], _reduced([call.inputs[0] for call in calls], op))

    return move


def all_gather(calls: Sequence[MemberTensors]) -> None:
    """outputs[j] of every member becomes the input of the member at position j."""
    for call in calls:
        for target, other in zip(call.outputs, calls, strict=True):
            _put(target, other.inputs[0])


def gather(root: int) -> Move:
    """outputs[j] of the member at position `root` becomes the input of the member at position j."""

    def move(calls: Sequence[MemberTensors]) -> None:
        for target, other in zip(calls[root].outputs, calls, strict=True):
            _put(target, other.inputs[0])

    return move


def scatter(root: int) -> Move:
    """The output of the member at position j becomes inputs[j] of the member at position `root`."""

    def move(calls: Sequence[MemberTensors]) -> None:
        for call, part in zip(calls, calls[root].inputs, strict=True):
            _put(call.outputs[0], part)

    return move


def reduce_scatter(op: str) -> Move:
    """The output of the member at position j becomes the reduction of all members' inputs[j]."""

    def move(calls: Sequence[MemberTensors]) -> None:
        totals = [_reduced([c.inputs[j] for c in calls], op) for j in range(len(calls))]
        for call, total in zip(calls, totals, strict=True):
            _put(call.outputs[0], total)

    return move


def all_to_all(calls: Sequence[MemberTensors]) -> None:
    """outputs[j] of the member at position i becomes inputs[i] of the member at position j.

    Raises PartsDiffer, and moves nothing, if a part does not have the size that its receiver expects.
    """
    pairs = [
        (call.outputs[j], other.inputs[i]) for i, call in enumerate(calls) for j, other in enumerate(calls)
    ]
    if any(target.numel() != source.numel() for target, source in pairs):
        raise PartsDiffer
    # In place is allowed, so all parts are read before any is written.
    for (target, _), source in zip(pairs, [source.detach().clone() for _, source in pairs], strict=True):
        _put(target, source)


def barrier(calls: Sequence[MemberTensors]) -> None:
    """Nothing moves."""


def coalesced(move: Move) -> Move:
    """The same collective for several tensors at once: tensor k of every member, for each k."""

    def each(calls: Sequence[MemberTensors]) -> None:
        # One side has a part a member for each tensor, the other the tensor itself.
        count = min(len(calls[0].inputs), len(calls[0].outputs))
        for index in range(count):
            move([_tensor_of(call, index, count) for call in calls])

    return each


class _PartOfCall(NamedTuple):
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def _tensor_of(call: MemberTensors, index: int, count: int) -> _PartOfCall:
    """What a coalesced call of `count` tensors does with one of them."""

    def share(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        size = len(tensors) // count
        return tensors[index * size : (index + 1) * size]

    return _PartOfCall(share(call.inputs), share(call.outputs))


_MAKERS: dict[str, Callable[[int, str], Move]] = {
    "broadcast": lambda root, _: broadcast(root),
    "all_reduce": lambda _, reduction: all_reduce(reduction),
    "all_reduce_coalesced": lambda _, reduction: all_reduce(reduction),
    "reduce": reduce,
    "all_gather": lambda *_: all_gather,
    "all_gather_coalesced": lambda *_: coalesced(all_gather),
    "all_gather_into_tensor": lambda *_: all_gather,
    "all_gather_into_tensor_coalesced": lambda *_: coalesced(all_gather),
    "gather": lambda root, _: gather(root),
    "gather_single": lambda root, _: gather(root),
    "scatter": lambda root, _: scatter(root),
    "reduce_scatter": lambda _, reduction: reduce_scatter(reduction),
    "reduce_scatter_tensor": lambda _, reduction: reduce_scatter(reduction),
    "reduce_scatter_tensor_coalesced": lambda _, reduction: coalesced(reduce_scatter(reduction)),
    "all_to_all": lambda *_: all_to_all,
    "all_to_all_single": lambda *_: all_to_all,
    "barrier": lambda *_: barrier,
    "monitored_barrier": lambda *_: barrier,
    NEW_GROUP: lambda *_: barrier,
}

COLLECTIVES = frozenset(_MAKERS)
"""The names that a `Call` has which is no message."""


def move(calls: Sequence[Operation]) -> None:
    """Do what a collective does to its members' tensors. calls: the members', in the order of the group.

    Raises PartsDiffer, and moves nothing, if the parts of an all-to-all do not fit.
    """
    call = calls[0].call
    root = 0 if call.root is None else call.group.members.index(call.root)
    _MAKERS[call.op](root, call.reduction)(calls)


def check_exchange(calls: Sequence[Operation]) -> None:
    """Raise PartsDiffer if a part of an all-to-all does not have the size that its receiver expects."""
    parts = [operation.call.parts for operation in calls if operation.call.parts is not None]
    for (_, expected), sent in zip(
        parts, zip(*(outgoing for outgoing, _ in parts), strict=True), strict=True
    ):
        if expected != sent:
            raise PartsDiffer


def _reduced(tensors: Sequence[Tensor], op: str) -> Tensor:
    """The reduction in the tensors' own dtype, in order."""
    combine = REDUCTIONS[op]
    total = tensors[0].detach().clone()
    for tensor in tensors[1:]:
        total = combine(total, tensor.detach()).to(total.dtype)
    if op == "AVG":
        total = (total / len(tensors)).to(total.dtype)
    return total


def _put(target: Tensor, source: Tensor) -> None:
    target.detach().copy_(source.detach().reshape(target.shape))
