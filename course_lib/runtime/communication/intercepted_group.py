"""Process groups that see every call: torch's methods of a group, turned into a `Call` each.

`InterceptedGroup` is a Python subclass of `ProcessGroup`. So everything that speaks through a group is seen:
the functions of `torch.distributed`, and from C++ DistributedDataParallel, functional collectives, DTensor
and FSDP2. What a call comes to is a subclass's business: simulated ranks post it, real ones log it and hand
it to Gloo or NCCL. Names and arguments of the methods are those that torch calls.
"""

# torch declares each method of ProcessGroup with several signatures; torch itself calls the ones given here.
# mypy: disable-error-code="override, assignment"

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.runtime.communication.blocking import (
    called_asynchronously,
    called_blocking,
    called_from_cpp,
    member,
)
from course_lib.runtime.communication.call import Call, Group, payload_of
from course_lib.runtime.communication.callsite import caller_line
from course_lib.runtime.communication.semantics import reduction_name
from course_lib.runtime.communication.tensor_checks import (
    check_dense,
    check_one_dtype,
    check_strided,
    common_strides,
)
from course_lib.runtime.communication.torch_versions import FORGETS_PYTHON, NAMES, Handle

TorchCall = tuple[Any, ...]
"""The name of the method that torch has called, and its arguments."""


class InterceptedGroup(dist.ProcessGroup):
    """One rank's end of a process group."""

    def __init__(self, rank: int, size: int) -> None:
        """rank: this rank's position in the group."""
        super().__init__(rank, size)  # type: ignore[call-arg] # the form for subclasses
        self._message_calls: dict[tuple[Any, ...], Call] = {}
        """Messages of one line in a loop are one call: a long run has millions."""

    call_group: Group
    """The group as calls name it."""

    def carry_out(
        self,
        call: Call,
        peer: int | None,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        torchs: TorchCall,
    ) -> Any:
        """Make the call; returns its handle. peer: the global rank of a message's other side.

        inputs, outputs: the tensors that it reads and writes, those of one member after another.
        """
        raise NotImplementedError

    # --- Point to point; `rank` is a position in the group

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        peer = member(self.call_group.members, rank)
        return self._message("send", tensors, peer, tag, ("send", tensors, rank, tag))

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        peer = member(self.call_group.members, rank)
        return self._message("recv", tensors, peer, tag, ("recv", tensors, rank, tag))

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Any:
        return self._message("recv", tensors, None, tag, ("recv_anysource", tensors, tag))

    # --- Collectives

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._rooted("broadcast", tensors, tensors, opts, "broadcast", tensors)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._reducing("all_reduce", tensors, tensors, opts, "allreduce", tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._reducing("all_reduce_coalesced", tensors, tensors, opts, "allreduce_coalesced", tensors)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._collective(
            "reduce", tensors, tensors, opts, "reduce", tensors, root=_root(opts), reduction=_reduction(opts)
        )

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        return self._collective("all_gather", inputs, outputs[0], opts, "allgather", outputs, inputs)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        parts = [of_member[index] for index in range(len(inputs)) for of_member in outputs]
        name = "allgather_coalesced"
        return self._collective("all_gather_coalesced", inputs, parts, opts, name, outputs, inputs)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        op, name = "all_gather_into_tensor", NAMES["all_gather_single"]
        return self._collective(op, [tensor], self._chunks(op, output), opts, name, output, tensor)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        op, name = "all_gather_into_tensor_coalesced", NAMES["all_gather_single_coalesced"]
        return self._collective(op, inputs, self._chunks(op, *outputs), opts, name, outputs, inputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        parts = outputs[0] if outputs else []
        return self._rooted("gather", inputs, parts, opts, "gather", outputs, inputs)

    def gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """New in PyTorch 2.14. What members other than the root give as output is empty."""
        parts = self._chunks("gather_single", output) if self.rank() == _root(opts) else []
        return self._rooted("gather_single", [tensor], parts, opts, "gather_single", output, tensor)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        parts = inputs[0] if inputs else []
        check_strided("scatter", parts)
        check_dense("scatter", parts)
        return self._rooted("scatter", parts, outputs, opts, "scatter", outputs, inputs)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        return self._reducing("reduce_scatter", inputs[0], outputs, opts, "reduce_scatter", outputs, inputs)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        op, name = "reduce_scatter_tensor", NAMES["reduce_scatter_single"]
        return self._reducing(op, self._chunks(op, tensor), [output], opts, name, output, tensor)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        op, name = "reduce_scatter_tensor_coalesced", NAMES["reduce_scatter_single_coalesced"]
        return self._reducing(op, self._chunks(op, *inputs), outputs, opts, name, outputs, inputs)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        return self._collective("all_to_all", inputs, outputs, opts, "alltoall", outputs, inputs)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Exchange the parts of one tensor, split evenly or by the given sizes of its first dimension."""
        op, name = "all_to_all_single", NAMES["all_to_all_single"]
        # They may come as NumPy's arrays of NumPy's numbers.
        sizes = [int(size) for size in output_sizes], [int(size) for size in input_sizes]
        targets, sources = (self._split(op, *each) for each in zip((output, tensor), sizes, strict=True))
        return self._collective(op, sources, targets, opts, name, output, tensor, *sizes)

    def barrier(self, opts: Any = None) -> Any:
        return self._collective("barrier", [], [], opts, "barrier")

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self._collective(
            "monitored_barrier", [], [], None, "monitored_barrier", timeout, wait_all_ranks
        ).wait()

    # The names before PyTorch 2.13, which later ones keep for programs that use groups directly.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single

    # --- Making the call

    def _message(self, op: str, tensors: list[Tensor], peer: int | None, tag: int, torchs: TorchCall) -> Any:
        (tensor,) = tensors
        _check_contiguous(op, tensor)
        dtype, shape, shape_only, line = tensor.dtype, tensor.shape, tensor.is_meta, caller_line()
        asynchronous = not called_blocking(op)
        # The line by its id, which costs less than its hash; the call that is kept keeps the line.
        kind = (op, tag, dtype, shape, shape_only, asynchronous, id(line))
        call = self._message_calls.get(kind)
        if call is None:
            call = self._message_calls[kind] = Call(
                op,
                self.call_group,
                tag=tag,
                shape=(dtype, shape),
                nbytes=tensor.nbytes,
                shape_only=shape_only,
                asynchronous=asynchronous,
                line=line,
            )
        inputs, outputs = (tensors, ()) if op == "send" else ((), tensors)
        return self.carry_out(call, peer, inputs, outputs, torchs)

    def _rooted(
        self, op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], opts: Any, *torchs: Any
    ) -> Any:
        return self._collective(op, inputs, outputs, opts, *torchs, root=_root(opts))

    def _reducing(
        self, op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], opts: Any, *torchs: Any
    ) -> Any:
        return self._collective(op, inputs, outputs, opts, *torchs, reduction=_reduction(opts))

    def _collective(
        self,
        op: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        opts: Any,
        *torchs: Any,
        root: int | None = None,
        reduction: str = "",
    ) -> Any:
        """Make a collective. torchs: torch's method and its arguments, but for the options.

        Raises ValueError for tensors with which Gloo would do harm.
        """
        tensors = [*inputs, *outputs]
        check_strided(op, tensors)
        check_dense(op, outputs)
        check_one_dtype(op, tensors)
        shape, parts, nbytes = payload_of(op, inputs, outputs)
        call = Call(
            op,
            self.call_group,
            None if root is None else member(self.call_group.members, root),
            reduction=reduction,
            shape=shape,
            parts=parts,
            nbytes=nbytes,
            strides=common_strides(op, tensors),
            shape_only=_shape_only(op, tensors),
            asynchronous=called_asynchronously(opts),
            line=caller_line(),
        )
        # The base class has options of its own, if there are none.
        handle = self.carry_out(call, None, inputs, outputs, torchs if opts is None else (*torchs, opts))
        if FORGETS_PYTHON and isinstance(handle, Handle) and called_from_cpp():
            handle.keep()
        return handle

    # --- One tensor as a part a member

    def _chunks(self, op: str, *tensors: Tensor) -> list[Tensor]:
        """Each tensor as equal flat parts that share its memory, one a member."""
        count = self.size()
        for tensor in tensors:
            _check_contiguous(op, tensor)
            if tensor.numel() % count:
                raise ValueError(
                    f"A tensor of {tensor.numel()} elements cannot be split evenly over {count} ranks. "
                    f"Pad it to a multiple of {count}."
                )
        return [part for tensor in tensors for part in _rows(tensor, count)]

    def _split(self, op: str, tensor: Tensor, sizes: list[int]) -> list[Tensor]:
        if not sizes:
            return self._chunks(op, tensor)
        _check_contiguous(op, tensor)
        return list(torch.split(tensor.detach(), sizes))


def _rows(tensor: Tensor, count: int) -> tuple[Tensor, ...]:
    return tensor.detach().view(count, tensor.numel() // count).unbind()


def _root(opts: Any) -> int:
    root: int = getattr(opts, "rootRank", 0)
    return root


def _reduction(opts: Any) -> str:
    return reduction_name(getattr(opts, "reduceOp", dist.ReduceOp.SUM))


def _check_contiguous(op: str, tensor: Tensor) -> None:
    check_strided(op, (tensor,))
    if not tensor.is_contiguous():
        raise ValueError(
            f"{op} needs a contiguous tensor, and this one of shape {list(tensor.shape)} has strides "
            f"{list(tensor.stride())}, as after .t() or a slice of columns. Pass tensor.contiguous()."
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
