"""The simulated backend of `torch.distributed`: a process group whose calls become operations of an engine.

It is a Python subclass of `ProcessGroup`, so that everything above it is torch's own: `dist.all_reduce`,
DistributedDataParallel, DTensor, device meshes.
"""

# torch declares each method of ProcessGroup with several signatures; Python's calls use the one given here.
# mypy: disable-error-code="override, assignment, call-arg"

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

# Its functions take for granted the group that there is when it is imported: none here, one rank's own there.
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed import distributed_c10d

from course_lib.runtime.communication import semantics
from course_lib.runtime.communication.blocking import called_blocking, member
from course_lib.runtime.communication.callsite import caller_line
from course_lib.runtime.simulator.engine import RankEngine, current_engine, current_rank
from course_lib.runtime.simulator.network import NEW_GROUP, Move, Operation, Shape
from course_lib.runtime.simulator.replaced import replaced

BACKEND = "simulated"


class SimulatedFuture(torch.futures.Future[Any]):
    """A future whose data is there already, and whose `wait` moves the rank's clock to when it really was."""

    def __init__(self, engine: RankEngine, operation: Operation, value: list[Tensor]) -> None:
        super().__init__()
        self._engine = engine
        self._operation = operation
        self.set_result(value)

    def wait(self) -> Any:
        """The tensors; the clock moves to the operation's end."""
        self._engine.wait(self._operation)
        return super().wait()


class SimulatedWork(dist.Work):
    """The handle of an operation."""

    def __init__(self, engine: RankEngine, operation: Operation, result: list[Tensor]) -> None:
        super().__init__()
        self._engine = engine
        self._operation = operation
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        """Block until the operation is done."""
        self._engine.wait(self._operation)
        return True

    def is_completed(self) -> bool:
        """Whether the operation is over; asking takes a little virtual time."""
        return self._engine.poll(self._operation)

    def is_success(self) -> bool:
        """Whether the operation is over; in the simulator none ends badly without ending the run."""
        return self._engine.is_done(self._operation)

    def synchronize(self) -> None:
        """The same as `wait`, since there are no streams."""
        self.wait()

    def result(self) -> list[Tensor]:
        """The tensors that the operation wrote."""
        return self._result

    def source_rank(self) -> int:
        """Who sent what was received, for a receive from anyone; as torch has it, a position in the group."""
        assert self._operation.peer is not None
        return self._operation.group.members.index(self._operation.peer)

    _source_rank = source_rank

    def get_future(self) -> SimulatedFuture:
        """A completed future: C++ code, such as DistributedDataParallel's reducer, cannot wait for a turn.

        The rank blocks here until the data is there, without moving its clock; during a backward pass the
        clock follows at the pass's end, so that communication overlaps with what is still computed.
        """
        self._engine.wait_for_data(self._operation)
        if torch._C._current_graph_task_id() != -1:
            autograd = torch.autograd.Variable._execution_engine
            autograd.queue_callback(lambda: self._engine.wait(self._operation))
        return SimulatedFuture(self._engine, self._operation, self._result)


class SimulatedGroup(dist.ProcessGroup):
    """One rank's end of a process group. Method names and arguments are those that torch calls."""

    def __init__(self, engine: RankEngine, rank: int, name: str, members: Sequence[int]) -> None:
        """rank: this rank's global number. members: global ranks, in the order of the group."""
        self._group_rank = members.index(rank)
        super().__init__(self._group_rank, len(members))
        self._engine = engine
        self._global_rank = rank
        self._name = name
        self._members = tuple(members)
        self._group = engine.group(name, members)

    # --- What torch asks a group about itself

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The backend's name."""
        return BACKEND

    def size(self) -> int:
        """How many members the group has."""
        return len(self._members)

    def rank(self) -> int:
        """This rank's position in the group."""
        return self._group_rank

    @property
    def group_name(self) -> str:
        """The name under which torch has registered the group."""
        return self._name

    @property
    def pg_name(self) -> str:
        """The same; torch uses both."""
        return self._name

    # --- Point to point; `rank` is a position in the group

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> SimulatedWork:
        """Offer tensors[0] to a member."""
        return self._point_to_point("send", tensors, member(self._members, rank), tag)

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> SimulatedWork:
        """Receive tensors[0] from a member."""
        return self._point_to_point("recv", tensors, member(self._members, rank), tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> SimulatedWork:
        """Receive tensors[0] from whoever offers first."""
        return self._point_to_point("recv", tensors, None, tag)

    # --- Collectives

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> SimulatedWork:
        """Give everyone the root's tensors."""
        root = 0 if opts is None else opts.rootRank
        move = semantics.broadcast(root)
        return self._collective("broadcast", tensors, tensors, move, opts, root=root)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> SimulatedWork:
        """Reduce over the members, in place."""
        reduction = _reduction(opts)
        move = semantics.all_reduce(reduction)
        return self._collective("all_reduce", tensors, tensors, move, opts, reduction=reduction)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> SimulatedWork:
        """Reduce several tensors in one call."""
        reduction = _reduction(opts)
        move = semantics.all_reduce(reduction)
        return self._collective("all_reduce_coalesced", tensors, tensors, move, opts, reduction=reduction)

    def reduce(self, tensors: list[Tensor], opts: Any) -> SimulatedWork:
        """Reduce to the root."""
        reduction, root = _reduction(opts), opts.rootRank
        move = semantics.reduce(root, reduction)
        return self._collective("reduce", tensors, tensors, move, opts, root=root, reduction=reduction)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> SimulatedWork:
        """Give everyone everyone's tensor."""
        return self._collective("all_gather", inputs, outputs[0], semantics.all_gather, opts)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> SimulatedWork:
        """All-gather into one tensor."""
        parts = _chunks(output, self.size())
        return self._collective("all_gather_into_tensor", [tensor], parts, semantics.all_gather, opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> SimulatedWork:
        """All-gather several tensors, each into one."""
        parts = [part for output in outputs for part in _chunks(output, self.size())]
        move = semantics.coalesced(semantics.all_gather)
        return self._collective("all_gather_into_tensor_coalesced", inputs, parts, move, opts)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> SimulatedWork:
        """Give the root everyone's tensor."""
        root = opts.rootRank
        targets = outputs[0] if outputs else []
        return self._collective("gather", inputs, targets, semantics.gather(root), opts, root=root)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> SimulatedWork:
        """Give each member its part of the root's list."""
        root = opts.rootRank
        sources = inputs[0] if inputs else []
        semantics.check_dense("scatter", sources)
        move = semantics.scatter(root)
        return self._collective("scatter", sources, outputs, move, opts, root=root)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> SimulatedWork:
        """Reduce lists of tensors, part j to member j."""
        reduction = _reduction(opts)
        move = semantics.reduce_scatter(reduction)
        return self._collective("reduce_scatter", inputs[0], outputs, move, opts, reduction=reduction)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> SimulatedWork:
        """Reduce one tensor, chunk j to member j."""
        reduction = _reduction(opts)
        move = semantics.reduce_scatter(reduction)
        return self._collective(
            "reduce_scatter_tensor",
            _chunks(tensor, self.size()),
            [output],
            move,
            opts,
            reduction=reduction,
        )

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimulatedWork:
        """Exchange lists of tensors."""
        return self._collective("all_to_all", inputs, outputs, semantics.all_to_all, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> SimulatedWork:
        """Exchange the parts of one tensor, split evenly or by the given sizes of its first dimension."""
        for each in (output, tensor):
            _check_contiguous("all_to_all_single", each)
        targets = _split(output, output_splits, self.size())
        sources = _split(tensor, input_splits, self.size())
        return self._collective("all_to_all_single", sources, targets, semantics.all_to_all, opts)

    def barrier(self, opts: Any = None) -> SimulatedWork:
        """Wait for everyone."""
        return self._collective("barrier", [], [], semantics.barrier, opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for everyone; if somebody does not come, the run says so without the help of a time-out."""
        self._collective("monitored_barrier", [], [], semantics.barrier, None).wait()

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    # --- Posting

    def _point_to_point(self, name: str, tensors: list[Tensor], peer: int | None, tag: int) -> SimulatedWork:
        (tensor,) = tensors
        _check_contiguous(name, tensor)
        sends = name == "send"
        operation = Operation(
            self._global_rank,
            name,
            self._group,
            posted=0.0,
            inputs=(tensor,) if sends else (),
            outputs=() if sends else (tensor,),
            peer=peer,
            tag=tag,
            shape=(tensor.dtype, tensor.shape),
            nbytes=tensor.nbytes,
            shape_only=tensor.is_meta,
            asynchronous=not called_blocking(name),
            line=caller_line(),
        )
        self._engine.post(operation)
        return SimulatedWork(self._engine, operation, tensors)

    def _collective(
        self,
        op: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        move: Move,
        opts: Any,
        root: int | None = None,
        reduction: str = "",
    ) -> SimulatedWork:
        """Post a collective."""
        _check_parts(op, self.size(), inputs, outputs)
        semantics.check_dense(op, outputs)
        if reduction:
            # Before anyone meets: every rank raises, and not the one that came last.
            semantics.check_reducible(op, reduction, inputs[0].dtype)
        payload = payload_of(op, inputs, outputs)
        operation = Operation(
            self._global_rank,
            op,
            self._group,
            posted=0.0,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            peer=None if root is None else member(self._members, root),
            reduction=reduction,
            shape=payload.shape,
            parts=payload.parts,
            nbytes=payload.nbytes,
            shape_only=_shape_only(op, [*inputs, *outputs]),
            asynchronous=bool(getattr(opts, "asyncOp", False)),
            line=caller_line(),
        )
        self._engine.post(operation, move)
        return SimulatedWork(self._engine, operation, list(outputs))


class Payload(NamedTuple):
    """What a call is about; see `Operation`."""

    shape: Shape | None
    parts: tuple[tuple[int, ...], tuple[int, ...]] | None
    nbytes: int


def payload_of(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Payload:
    """What a call with these tensors is about."""
    # Only the root of a scatter has inputs, and a reduce-scatter's are as many as there are members.
    about = outputs if op in ("recv", "scatter", "reduce_scatter", "reduce_scatter_tensor") else inputs
    exchange = op in ("all_to_all", "all_to_all_single")
    return Payload(
        _common_shape(about),
        (_bytes(inputs), _bytes(outputs)) if exchange else None,
        sum(_bytes(about if op in ("recv", "scatter") else inputs)),
    )


def _reduction(opts: Any) -> str:
    return "SUM" if opts is None else semantics.reduction_name(opts.reduceOp)


def _common_shape(tensors: Sequence[Tensor]) -> Shape | None:
    """Dtype and shape of the one tensor; of several, their number of elements together."""
    if not tensors:
        return None
    if len(tensors) == 1:
        return (tensors[0].dtype, tuple(tensors[0].shape))
    return (tensors[0].dtype, (sum(tensor.numel() for tensor in tensors),))


def _check_contiguous(op: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(
            f"{op} needs a contiguous tensor, and this one of shape {list(tensor.shape)} has strides "
            f"{list(tensor.stride())}, as after .t() or a slice of columns. Pass tensor.contiguous()."
        )


def _check_parts(op: str, size: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Raise ValueError if a list of one tensor a member is not as long as it must be, or not equal."""
    if op in ("all_to_all", "all_to_all_single"):
        _check_count(op, size, inputs)
        _check_count(op, size, outputs)
    elif op in ("all_gather", "reduce_scatter") or (op in ("gather", "scatter") and inputs and outputs):
        whole, parts = (inputs, outputs) if op in ("all_gather", "gather") else (outputs, inputs)
        _check_count(op, size, parts)
        for position, part in enumerate(parts):
            if part.numel() != whole[0].numel():
                raise ValueError(
                    f"{op} got a tensor of {whole[0].numel()} elements, and at position {position} of its "
                    f"list one of {part.numel()}. All must have the same number of elements."
                )


def _check_count(op: str, size: int, parts: Sequence[Tensor]) -> None:
    if len(parts) != size:
        raise ValueError(
            f"{op} in a group of {size} ranks needs {size} parts, one for each rank in the order of the "
            f"group, and got {len(parts)}."
        )


def _shape_only(op: str, tensors: Sequence[Tensor]) -> bool:
    """Whether the tensors of a call are meta tensors. Raises ValueError if only some of them are."""
    without_data = sum(tensor.is_meta for tensor in tensors)
    if without_data not in (0, len(tensors)):
        raise ValueError(
            f"{op} got {without_data} meta tensors, which have a shape and no data, among {len(tensors)} "
            f"tensors. Give it meta tensors only, or none."
        )
    return bool(without_data)


def _bytes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(tensor.nbytes for tensor in tensors)


def _chunks(tensor: Tensor, count: int) -> list[Tensor]:
    """A tensor as `count` equal flat parts that share its memory."""
    if tensor.numel() % count:
        raise ValueError(
            f"A tensor of {tensor.numel()} elements cannot be split evenly over {count} ranks. "
            f"Pad it to a multiple of {count}."
        )
    return list(tensor.detach().view(count, tensor.numel() // count).unbind())


def _split(tensor: Tensor, sizes: list[int], count: int) -> list[Tensor]:
    if sizes:
        return list(torch.split(tensor.detach(), sizes))
    return _chunks(tensor, count)


def _make_group(options: Any, backend_options: Any) -> SimulatedGroup:
    """What torch calls to create a group on the rank that it runs on."""
    rank = current_rank.get()
    if rank is None:
        raise RuntimeError(
            f'The backend "{BACKEND}" exists only on simulated ranks: launch(f, ranks=4) starts them.'
        )
    # The default group comes without a list of its members.
    members: Sequence[int] = options.global_ranks_in_group or range(options.group_size)
    return SimulatedGroup(current_engine.get(), rank, options.group_id, members)


@contextmanager
def as_with_gloo() -> Iterator[None]:
    """Have simulated ranks meet where others do: in every `new_group`, which all must call alike, and in
    `monitored_barrier`, which torch allows to Gloo alone.
    """
    make, monitor = distributed_c10d._new_group_with_tag, dist.monitored_barrier

    @wraps(make)
    def new_group(ranks: Any = None, *arguments: Any, **options: Any) -> Any:
        rank = current_rank.get()
        if rank is not None and not options.get("use_local_synchronization", False):
            _agree_on_group(rank, ranks)
        return make(ranks, *arguments, **options)

    @wraps(monitor)
    def monitored_barrier(group: Any = None, *arguments: Any, **options: Any) -> None:
        group = group or distributed_c10d._get_default_group()
        call = group.monitored_barrier if isinstance(group, SimulatedGroup) else partial(monitor, group)
        call(*arguments, **options)

    with (
        replaced(distributed_c10d, "_new_group_with_tag", new_group),
        replaced(dist, "monitored_barrier", monitored_barrier),
    ):
        yield


def _agree_on_group(rank: int, ranks: Sequence[int] | None) -> None:
    """Wait until every rank makes a group of these ranks."""
    engine = current_engine.get()
    everyone = range(dist.get_world_size())
    operation = Operation(
        rank,
        NEW_GROUP,
        engine.group(NEW_GROUP, everyone),
        posted=0.0,
        reduction=str(sorted(everyone if ranks is None else ranks)),
        line=caller_line(),
    )
    engine.post(operation, semantics.barrier)
    engine.wait(operation)


dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", "cuda"])
