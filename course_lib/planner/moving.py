"""A tensor changes its layout along one axis: the collectives that this takes, forward and in backward.

A tensor and its gradient lie in layouts that belong together. What is sharded has a gradient sharded alike. A
sum that is still to be added up (`Partial`) has a whole gradient (`Replicate`). What is whole has a whole
gradient too, or one that is a sum still to be added up: the latter where each rank computes something else
with it. (Megatron's f and g are two of these moves; Shoeybi et al., arXiv:1909.08053, section 3.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies along an axis, and how its gradient does."""

    value: Placement
    gradient: Placement


WHOLE = Layout(Replicate(), Replicate())


def made_as(placement: Placement) -> Layout:
    """The layout of an operator's result."""
    return Layout(placement, placement if isinstance(placement, Shard) else Replicate())


def wanted_as(placement: Placement, others: bool) -> Layout:
    """The layout of an operator's operand. others: if each rank computes something else with it."""
    if isinstance(placement, Shard):
        return Layout(placement, placement)
    return Layout(Replicate(), Partial() if others else Replicate())


class Axis(Protocol):
    """The ranks along one axis of the mesh, and the collectives that they make: results come to `out`."""

    ranks: int
    place: int

    def all_reduce(self, x: Tensor) -> None: ...

    def all_gather_into_tensor(self, out: Tensor, x: Tensor) -> None: ...

    def reduce_scatter_tensor(self, out: Tensor, x: Tensor) -> None: ...

    def all_to_all_single(self, out: Tensor, x: Tensor) -> None: ...


class GroupAxis:
    """Those of a process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.ranks, self.place = dist.get_world_size(group), dist.get_rank(group)
        self._group = group

    def all_reduce(self, x: Tensor) -> None:
        dist.all_reduce(x, group=self._group)

    def all_gather_into_tensor(self, out: Tensor, x: Tensor) -> None:
        dist.all_gather_into_tensor(out, x, group=self._group)

    def reduce_scatter_tensor(self, out: Tensor, x: Tensor) -> None:
        dist.reduce_scatter_tensor(out, x, group=self._group)

    def all_to_all_single(self, out: Tensor, x: Tensor) -> None:
        dist.all_to_all_single(out, x, group=self._group)


@dataclass(slots=True)
class CountedAxis:
    """Nobody is there: the calls are written down, and tensors without data stay as they are.

    clock: says how much has been computed, in seconds. calls: operation, bytes given, and the clock then.
    """

    ranks: int
    place: int = 0
    clock: Callable[[], float] = lambda: 0.0
    calls: list[tuple[str, int, float]] = field(default_factory=list)

    def _write(self, operation: str, x: Tensor) -> None:
        self.calls.append((operation, x.nbytes, self.clock()))

    def all_reduce(self, x: Tensor) -> None:
        self._write("all_reduce", x)

    def all_gather_into_tensor(self, out: Tensor, x: Tensor) -> None:
        self._write("all_gather_into_tensor", x)

    def reduce_scatter_tensor(self, out: Tensor, x: Tensor) -> None:
        self._write("reduce_scatter_tensor", x)

    def all_to_all_single(self, out: Tensor, x: Tensor) -> None:
        self._write("all_to_all_single", x)


def move(x: Tensor, source: Layout, target: Layout, axis: Axis) -> Tensor:
    """The tensor in another layout; its gradient comes back in the layout of the source.

    x: this rank's part. Nothing is sent where the parts are the same, forward and in backward each.
    """
    if source == target or axis.ranks == 1:
        return x
    moved: Tensor = _Move.apply(x, source, target, axis)  # type: ignore[no-untyped-call]
    return moved


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Layout, target: Layout, axis: Axis) -> Tensor:
        ctx.way = target.gradient, source.gradient, axis
        return _moved(x, source.value, target.value, axis)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _moved(gradients[0], *ctx.way), None, None, None


def _moved(x: Tensor, source: Placement, target: Placement, axis: Axis) -> Tensor:
    """This rank's part in another layout: one collective, or none."""
    match source, target:
        case Replicate(), Shard():
            # Its own storage: the whole need not be kept for the part's sake.
            return x.chunk(axis.ranks, target.dim)[axis.place].contiguous()
        case Partial(), Replicate():
            x = x.clone(memory_format=torch.contiguous_format)
            axis.all_reduce(x)
            return x
        case Partial(), Shard():
            return _reduce_scattered(x, target.dim, axis)
        case Shard(), Replicate():
            return _gathered(x, source.dim, axis)
        case Shard(), Shard() if source.dim != target.dim:
            return _exchanged(x, source.dim, target.dim, axis)
    return x.view_as(x)


def _gathered(x: Tensor, dim: int, axis: Axis) -> Tensor:
    part = x.movedim(dim, 0).contiguous()
    whole = part.new_empty(axis.ranks * part.shape[0], *part.shape[1:])
    axis.all_gather_into_tensor(whole, part)
    return whole.movedim(0, dim).contiguous()


def _reduce_scattered(x: Tensor, dim: int, axis: Axis) -> Tensor:
    whole = x.movedim(dim, 0).contiguous()
    part = whole.new_empty(whole.shape[0] // axis.ranks, *whole.shape[1:])
    axis.reduce_scatter_tensor(part, whole)
    return part.movedim(0, dim).contiguous()


def _exchanged(x: Tensor, source: int, target: int, axis: Axis) -> Tensor:
    """Of what is sharded at `source`, each rank gets every rank's part at `target`."""
    given = torch.stack(x.chunk(axis.ranks, target)).contiguous()
    received = torch.empty_like(given)
    axis.all_to_all_single(received, given)
    return torch.cat(received.unbind(), source)
