"""Process groups that note every call in the rank's journal, and are torch's own in everything else.

`install` has `torch.distributed` make a `LoggedGroup` wherever it would make a `ProcessGroup`. Each method
notes the call and hands it to an ordinary group, which hands it to Gloo or NCCL. So everything that speaks
through a group is seen: the functions of `torch.distributed`, and from C++ DistributedDataParallel,
functional collectives, DTensor and FSDP2.
"""

# torch's stubs list older forms of each method, which torch itself does not call.
# mypy: disable-error-code="override, assignment"

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from course_lib.runtime.communication.blocking import called_blocking, member
from course_lib.runtime.communication.semantics import check_dense, reduction_name
from course_lib.runtime.processes.call_log import CallLog
from course_lib.runtime.processes.logged_calls import Call, CallLogger, LoggedWork
from course_lib.runtime.simulator.network import NEW_GROUP


class LoggedGroup(dist.ProcessGroup):
    """One rank's end of a process group, which notes every call and hands it to an ordinary group.

    It does not call the base class's own methods: those of a Python subclass hold Python's global lock while
    Gloo takes its own locks, and Gloo's threads do the reverse when they let go of tensors.
    """

    recorder: CallLogger
    """Set by `install`, once a process."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg] # the form for subclasses
        self._inner = dist.ProcessGroup(store, rank, size)

    def get_group_store(self) -> Store:
        """The store through which the members have met."""
        return self._inner.get_group_store()

    # What torch tells a new group goes to both: C++ asks this one for its backends.

    def _register_backend(self, device: torch.device, kind: Any, backend: Any = None) -> None:
        super()._register_backend(device, kind, backend)
        self._inner._register_backend(device, kind, backend)

    def _set_default_backend(self, kind: Any) -> None:
        super()._set_default_backend(kind)
        self._inner._set_default_backend(kind)

    def _set_group_name(self, name: Any) -> None:
        super()._set_group_name(name)
        self._inner._set_group_name(name)

    def _set_group_desc(self, description: str) -> None:
        super()._set_group_desc(description)
        self._inner._set_group_desc(description)

    @functools.cached_property
    def _members(self) -> tuple[int, ...]:
        """Global ranks, in the order of the group."""
        return tuple(dist.get_process_group_ranks(self))

    @functools.cached_property
    def _name(self) -> str:
        return self.group_name

    # --- Point to point

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        call = self._message("send", tensors[0], member(self._members, rank), tag)
        return self._work(self._inner.send(tensors, rank, tag), call)

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        call = self._message("recv", tensors[0], member(self._members, rank), tag)
        return self._work(self._inner.recv(tensors, rank, tag), call)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Any:
        call = self._message("recv", tensors[0], None, tag)
        work = self._inner.recv_anysource(tensors, tag)
        return self._work(work, call, self._members)

    # --- Collectives

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        call = self._collective("broadcast", tensors, opts, root=_root(opts))
        return self._collective_work(self._inner.broadcast(tensors, *_given(opts)), call)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        call = self._collective("all_reduce", tensors, opts, reduces=True)
        return self._collective_work(self._inner.allreduce(tensors, *_given(opts)), call)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        call = self._collective("all_reduce_coalesced", tensors, opts, reduces=True)
        return self._collective_work(self._inner.allreduce_coalesced(tensors, *_given(opts)), call)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        call = self._collective("reduce", tensors, opts, root=_root(opts), reduces=True)
        return self._collective_work(self._inner.reduce(tensors, *_given(opts)), call)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        call = self._collective("all_gather", inputs, opts)
        return self._collective_work(self._inner.allgather(outputs, inputs, *_given(opts)), call)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        call = self._collective("all_gather_coalesced", inputs, opts)
        work = self._inner.allgather_coalesced(outputs, inputs, *_given(opts))
        return self._collective_work(work, call)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        call = self._collective("all_gather_into_tensor", [tensor], opts)
        work = self._inner.all_gather_single(output, tensor, *_given(opts))
        return self._collective_work(work, call)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        call = self._collective("all_gather_into_tensor_coalesced", inputs, opts)
        work = self._inner.all_gather_single_coalesced(outputs, inputs, *_given(opts))
        return self._collective_work(work, call)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        call = self._collective("gather", inputs, opts, root=_root(opts))
        work = self._inner.gather(outputs, inputs, *_given(opts))
        return self._collective_work(work, call)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        check_dense("scatter", inputs[0] if inputs else ())
        call = self._collective("scatter", outputs, opts, root=_root(opts))
        work = self._inner.scatter(outputs, inputs, *_given(opts))
        return self._collective_work(work, call)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        call = self._collective("reduce_scatter", outputs, opts, reduces=True, payload=inputs[0])
        work = self._inner.reduce_scatter(outputs, inputs, *_given(opts))
        return self._collective_work(work, call)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        call = self._collective("reduce_scatter_tensor", [output], opts, reduces=True, payload=[tensor])
        work = self._inner.reduce_scatter_single(output, tensor, *_given(opts))
        return self._collective_work(work, call)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        call = self._collective(
            "reduce_scatter_tensor_coalesced", outputs, opts, reduces=True, payload=inputs
        )
        work = self._inner.reduce_scatter_single_coalesced(outputs, inputs, *_given(opts))
        return self._collective_work(work, call)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        parts = (_bytes(inputs), _bytes(outputs))
        call = self._collective("all_to_all", inputs, opts, parts=parts)
        return self._collective_work(self._inner.alltoall(outputs, inputs, *_given(opts)), call)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        parts = (
            _part_bytes(tensor, input_sizes, self.size()),
            _part_bytes(output, output_sizes, self.size()),
        )
        call = self._collective("all_to_all_single", [tensor], opts, parts=parts)
        work = self._inner.all_to_all_single(output, tensor, output_sizes, input_sizes, *_given(opts))
        return self._collective_work(work, call)

    def barrier(self, opts: Any = None) -> Any:
        call = self._collective("barrier", [], opts)
        return self._collective_work(self._inner.barrier(*_given(opts)), call)

    def monitored_barrier(self, *arguments: Any, **options: Any) -> None:
        number = self._collective("monitored_barrier", [], None).number
        try:
            self._inner.monitored_barrier(*arguments, **options)  # type: ignore[attr-defined]
        except BaseException:
            self.recorder.resumed(number)
            raise
        self.recorder.done(number)

    # Older names, which torch keeps for programs that use groups directly.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- Noting

    def _message(self, op: str, tensor: Tensor, peer: int | None, tag: int) -> Call:
        asynchronous = not called_blocking(op)
        number = self.recorder.posted(
            op,
            self._name,
            self._members,
            peer=peer,
            tag=tag,
            shape=_common_shape([tensor]),
            nbytes=tensor.nbytes,
            asynchronous=asynchronous,
        )
        return Call(number, asynchronous, tensor.is_cuda, is_message=True)

    def _collective(
        self,
        op: str,
        about: Sequence[Tensor],
        opts: Any,
        *,
        root: int | None = None,
        reduces: bool = False,
        payload: Sequence[Tensor] | None = None,
        parts: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> Call:
        """Note a collective. All must agree on the shape of `about`; `payload` is what it counts as bytes.

        Raises ValueError for tensors with which Gloo would do harm.
        """
        check_dense(op, about)
        asynchronous = bool(getattr(opts, "asyncOp", False))
        number = self.recorder.posted(
            op,
            self._name,
            self._members,
            peer=None if root is None else member(self._members, root),
            reduction=reduction_name(getattr(opts, "reduceOp", dist.ReduceOp.SUM)) if reduces else "",
            shape=_common_shape(about),
            parts=parts,
            nbytes=sum(_bytes(about if payload is None else payload)),
            asynchronous=asynchronous,
        )
        return Call(number, asynchronous, any(tensor.is_cuda for tensor in about))

    def _work(self, inner: Any, call: Call, members: tuple[int, ...] | None = None) -> LoggedWork:
        if call.on_gpu:
            self.recorder.log_end_on_gpu(call.number, inner)
        return LoggedWork(inner, self.recorder, call, members)

    def _collective_work(self, inner: Any, call: Call) -> LoggedWork | None:
        """The handle of a collective; None where the backend has none since the call is over."""
        if inner is None:
            self.recorder.done(call.number)
            return None
        if call.asynchronous and not call.on_gpu:
            self.recorder.log_end(call.number, inner)
        return self._work(inner, call)


def install(journal: CallLog) -> CallLogger:
    """Have `torch.distributed` make recorded groups in this process from now on."""
    recorder = LoggedGroup.recorder = CallLogger(journal)
    distributed_c10d.ProcessGroup = LoggedGroup  # type: ignore[misc]
    distributed_c10d._new_group_with_tag = _recording_new_group(
        distributed_c10d._new_group_with_tag, recorder
    )
    return recorder


def _recording_new_group(make: Any, recorder: CallLogger) -> Any:
    """torch's function that makes a group, with a note of the call: all ranks must make the same groups."""

    @functools.wraps(make)
    def new_group(ranks: Any = None, *arguments: Any, **options: Any) -> Any:
        members = tuple(range(dist.get_world_size())) if ranks is None else tuple(sorted(ranks))
        alone = options.get("use_local_synchronization", False)
        callers = members if alone else tuple(range(dist.get_world_size()))
        number = recorder.posted(
            NEW_GROUP, f"{NEW_GROUP}{members if alone else ''}", callers, reduction=str(list(members))
        )
        try:
            group = make(ranks, *arguments, **options)
        except BaseException:
            recorder.resumed(number)
            raise
        recorder.done(number)
        return group

    return new_group


def _given(opts: Any) -> tuple[Any, ...]:
    """The options if there are any: the base class has defaults of its own."""
    return () if opts is None else (opts,)


def _root(options: Any) -> int:
    root: int = getattr(options, "rootRank", 0)
    return root


def _common_shape(tensors: Sequence[Tensor]) -> tuple[str, tuple[int, ...]] | None:
    """Dtype and shape of the one tensor; of several, their number of elements together."""
    if not tensors:
        return None
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    if len(tensors) == 1:
        return (dtype, tuple(tensors[0].shape))
    return (dtype, (sum(tensor.numel() for tensor in tensors),))


def _bytes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(tensor.nbytes for tensor in tensors)


def _part_bytes(tensor: Tensor, sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """Bytes for each rank of a tensor that is split by `sizes` of its first dimension, or evenly."""
    if not sizes:
        return (tensor.nbytes // count,) * count
    row = tensor.nbytes // tensor.shape[0] if tensor.shape[0] else 0
    return tuple(size * row for size in sizes)
