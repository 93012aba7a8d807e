"""What a rank does in some operators, found by running them alone on tensors without data, and counting.

Computing is counted by the same roofline as in the simulator; collectives are written down.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import Partial, Shard

from course_lib.cluster.topology import Cluster
from course_lib.planner.graph import INPUT, Graph, Operator
from course_lib.planner.moving import CountedAxis, Layout, move
from course_lib.planner.remembering import RememberingClock, Stopwatch
from course_lib.planner.shards import ShardedPieces, Split, part, wanted
from course_lib.training.pipeline.stage import LossFunction


@dataclass(frozen=True, slots=True)
class Work:
    """computing: seconds in all. calls: each collective along the tensor axis, in order: operation, bytes of
    the tensor that it is given, and seconds of computing since the call before.
    """

    computing: float
    calls: tuple[tuple[str, int, float], ...]

    @classmethod
    def of(cls, calls: Sequence[tuple[str, int, float]], begin: float, end: float) -> "Work":
        """From calls that say when they were, between begin and end on the same clock."""
        before = [begin, *(clock for _, _, clock in calls)]
        return cls(
            end - begin,
            tuple(
                (name, nbytes, clock - last)
                for (name, nbytes, clock), last in zip(calls, before, strict=False)
            ),
        )


@dataclass(frozen=True, slots=True)
class Counted:
    """What a rank does for one micro-batch, in some operators.

    forward, backward: what is computed and called, in order. kept: bytes that forward leaves for backward.
    parameters: bytes of this rank's. summed: of these, those whose gradients are parts of a sum.
    """

    forward: Work
    backward: Work
    kept: int
    parameters: int
    summed: int


def count(
    operators: Sequence[Operator],
    graph: Graph,
    split: Split,
    ranks: int,
    cluster: Cluster,
    loss_function: LossFunction | None = None,
    targets: Tensor | None = None,
) -> Counted:
    """Run operators of a graph alone, as one of `ranks` ranks along the tensor axis of the cluster.

    What comes in and what comes out is whole. loss_function: computed of the result and targets, if given.
    """
    watch = Stopwatch(cluster)
    axis = CountedAxis(ranks, clock=lambda: watch.seconds)
    used = {name for operator in operators for name in operator.operands}
    constants = {name: value.to("meta") for name, value in graph.constants.items() if name in used}
    pieces = ShardedPieces(operators, split, axis, graph.parameters, constants)
    for _, parameter in pieces.named_parts():
        parameter.grad = torch.empty_like(parameter)
    x = _what_comes_in(operators, graph)
    kept = _Kept(pieces.parameters())
    with RememberingClock(watch, cluster):
        with kept.hooks():
            y = pieces(x)
            if loss_function is not None and targets is not None:
                y = loss_function(y, targets) * 1.0
        forward = Work.of(axis.calls, 0.0, watch.seconds)
        axis.calls.clear()
        # A loss has the gradient 1, which is made; that of a result has come with a message.
        torch.autograd.backward(
            y, None if y.dim() == 0 else torch.empty_like(y, memory_format=torch.contiguous_format)
        )
    sizes = {name: parameter.nbytes for name, parameter in pieces.named_parts()}
    summed = sum(size for name, size in sizes.items() if pieces.layouts[name].gradient == Partial())
    backward = Work.of(axis.calls, forward.computing, watch.seconds)
    return Counted(forward, backward, kept.nbytes, sum(sizes.values()), summed)


def _what_comes_in(operators: Sequence[Operator], graph: Graph) -> Tensor:
    """A tensor without data like the input of the first of these operators."""
    first = operators[0].piece
    if first == 0:
        return graph.example
    return torch.empty(graph[graph.outputs[first - 1]].result, device="meta", requires_grad=True)


class _Kept:
    """The storages that autograd keeps, each once."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        self._known = {each.untyped_storage()._cdata for each in known}
        self._kept: dict[int, torch.UntypedStorage] = {}

    def hooks(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._kept[storage._cdata] = storage
        return tensor

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes() for storage in self._kept.values())


# --- One operator, one move


def operator_seconds(
    operator: Operator, letter: str | None, ranks: int, graph: Graph, cluster: Cluster
) -> float:
    """Forward and backward of an operator of which `ranks` share the letter, without what moves."""
    operands = []
    for name, shape, layout in zip(operator.operands, operator.shapes, wanted(operator, letter), strict=True):
        known = graph.parameters.get(
            name, graph.constants.get(name, graph.example if name == INPUT else None)
        )
        whole = torch.empty(shape, dtype=None if known is None else known.dtype, device="meta")
        own = part(whole, layout, CountedAxis(ranks))
        if own.is_floating_point() and name not in graph.constants:
            own.requires_grad_()
        if name in graph.parameters:
            own.grad = torch.empty_like(own)
        operands.append(own)
    watch = Stopwatch(cluster)
    with RememberingClock(watch, cluster):
        y = operator.compute(*operands)
        torch.autograd.backward(y, torch.empty_like(y))
    return watch.seconds


def move_calls(
    shape: Sequence[int], source: Layout, target: Layout, ranks: int, cluster: Cluster
) -> tuple[float, list[tuple[str, int]]]:
    """Seconds of copying, and collectives, of a float32 tensor of this whole shape and of its gradient."""
    axis = CountedAxis(ranks)
    x = torch.empty(shape, device="meta")
    x = (x.chunk(ranks, source.value.dim)[0].contiguous() if isinstance(source.value, Shard) else x).detach()
    watch = Stopwatch(cluster)
    with RememberingClock(watch, cluster):
        y = move(x.requires_grad_(), source, target, axis)
        torch.autograd.backward(y, torch.empty_like(y))
    return watch.seconds, [(operation, nbytes) for operation, nbytes, _ in axis.calls]
