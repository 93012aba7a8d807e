"""What a rank's process and the grader's scheduler say to each other, as plain data.

The process sends lists of calls, each a dictionary with a name under "do"; the last one may be a question, to
which the grader replies. Whatever comes from the process is checked field by field: the student's code may
have written it. What can be counted is counted here, from the tensors themselves, and never believed.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime.communication import semantics
from course_lib.runtime.communication.events import SourceLine
from course_lib.runtime.simulator.backend import payload_of
from course_lib.runtime.simulator.network import NEW_GROUP, Group, Move, Operation
from graders.grading.answer import PlainData
from graders.protocol.codec import MAX_TENSORS, CodecError
from graders.protocol.records import check_fields, line_from_plain, line_to_plain

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if type(dtype) is torch.dtype
}
_LONGEST_NAME, _MOST_DIMS = 1000, 64
_REDUCTION = re.compile(r"[A-Z_]{0,20}|\[[\d, ]{0,10000}\]")
"""Of a collective, or the ranks of a new group: it stands in reports and figures."""

_FIELDS: dict[str, tuple[type, ...]] = {
    "do": (str,),
    "op": (str,),
    "group": (str,),
    "members": (tuple,),
    "inputs": (list,),
    "outputs": (list,),
    "peer": (int, type(None)),
    "tag": (int,),
    "reduction": (str,),
    "shape_only": (bool,),
    "asynchronous": (bool,),
    "line": (dict, type(None)),
}


def post_to_plain(operation: Operation, inputs: Sequence[Tensor]) -> PlainData:
    """A call that a rank posts, with these copies of its inputs."""
    return {
        "do": "post",
        "op": operation.op,
        "group": operation.group.name,
        "members": operation.group.members,
        "inputs": [_size(tensor) for tensor in inputs] if operation.shape_only else list(inputs),
        "outputs": [_output_to_plain(tensor, operation.inputs) for tensor in operation.outputs],
        "peer": operation.peer,
        "tag": operation.tag,
        "reduction": operation.reduction,
        "shape_only": operation.shape_only,
        "asynchronous": operation.asynchronous,
        "line": line_to_plain(operation.line),
    }


def post_from_plain(
    plain: Any, rank: int, group: Callable[[str, Sequence[int]], Group], keep_line: Callable[[str], bool]
) -> Operation:
    """The call, with tensors of the grader's own. Raises CodecError if it is none that a rank can make.

    group: see `Network.group`; it is asked only for members that are ranks of the run, `rank` among them.
    """
    check_fields(plain, _FIELDS, "a call")
    members = plain["members"]
    if plain["op"] not in _MOVES and plain["op"] not in ("send", "recv"):
        raise CodecError(f"there is no call {plain['op'][:40]!r}")
    if len(plain["group"]) > _LONGEST_NAME or not _REDUCTION.fullmatch(plain["reduction"]):
        raise CodecError("a call has an impossible group or reduction")
    if rank not in members or len(set(members)) != len(members):
        raise CodecError("a call is in a group of other ranks")
    if plain["peer"] is not None and plain["peer"] not in members:
        raise CodecError("a call names a rank that is not in its group")
    whole = group(plain["group"], members)
    inputs = [_input_from_plain(each, plain["shape_only"]) for each in plain["inputs"]]
    outputs = [_output_from_plain(each, inputs, plain["shape_only"]) for each in plain["outputs"]]
    if sum(tensor.nbytes for tensor in outputs if not tensor.is_meta) > MAX_TENSORS:
        raise CodecError("a call asks for more bytes than a message may have")
    if plain["op"] in ("send", "recv") and [len(inputs), len(outputs)] != [
        plain["op"] == "send",
        plain["op"] == "recv",
    ]:
        raise CodecError("a message has not exactly one tensor")
    if plain["op"] == "send" and plain["peer"] is None:
        raise CodecError("a message has no receiver")
    payload = payload_of(plain["op"], inputs, outputs)
    return Operation(
        rank,
        plain["op"],
        whole,
        posted=0.0,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        peer=plain["peer"],
        tag=plain["tag"],
        reduction=plain["reduction"],
        shape=payload.shape,
        parts=payload.parts,
        nbytes=payload.nbytes,
        shape_only=plain["shape_only"],
        asynchronous=plain["asynchronous"],
        line=line_from_plain(plain["line"], keep_line),
    )


def move_of(operation: Operation) -> Move | None:
    """What a collective does to its members' tensors; None for a message. Raises KeyError, ValueError."""
    make = _MOVES.get(operation.op)
    if make is None:
        return None
    root = 0 if operation.peer is None else operation.group.members.index(operation.peer)
    return make(root, operation.reduction)


_MOVES: dict[str, Callable[[int, str], Move]] = {
    "broadcast": lambda root, _: semantics.broadcast(root),
    "all_reduce": lambda _, reduction: semantics.all_reduce(reduction),
    "all_reduce_coalesced": lambda _, reduction: semantics.all_reduce(reduction),
    "reduce": semantics.reduce,
    "all_gather": lambda *_: semantics.all_gather,
    "all_gather_into_tensor": lambda *_: semantics.all_gather,
    "all_gather_into_tensor_coalesced": lambda *_: semantics.coalesced(semantics.all_gather),
    "gather": lambda root, _: semantics.gather(root),
    "scatter": lambda root, _: semantics.scatter(root),
    "reduce_scatter": lambda _, reduction: semantics.reduce_scatter(reduction),
    "reduce_scatter_tensor": lambda _, reduction: semantics.reduce_scatter(reduction),
    "all_to_all": lambda *_: semantics.all_to_all,
    "all_to_all_single": lambda *_: semantics.all_to_all,
    "barrier": lambda *_: semantics.barrier,
    "monitored_barrier": lambda *_: semantics.barrier,
    NEW_GROUP: lambda *_: semantics.barrier,
}


def _size(tensor: Tensor) -> PlainData:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": tuple(tensor.shape)}


def _output_to_plain(tensor: Tensor, inputs: Sequence[Tensor]) -> PlainData:
    """The position of the input that it is, for a call that works in place, otherwise its size."""
    return next((position for position, other in enumerate(inputs) if other is tensor), _size(tensor))


def _input_from_plain(plain: Any, shape_only: bool) -> Tensor:
    if shape_only:
        return _empty(plain, "meta")
    if type(plain) is not Tensor:
        raise CodecError("a call has an input that is no tensor")
    return plain


def _output_from_plain(plain: Any, inputs: Sequence[Tensor], shape_only: bool) -> Tensor:
    if type(plain) is not int:
        return _empty(plain, "meta" if shape_only else "cpu")
    if not 0 <= plain < len(inputs):
        raise CodecError("a call works in place on a tensor that it does not have")
    return inputs[plain]


def _empty(plain: Any, device: str) -> Tensor:
    check_fields(plain, {"dtype": (str,), "shape": (tuple,)}, "a tensor's size")
    dtype, nbytes = _DTYPES.get(plain["dtype"]), 16
    if dtype is None or len(plain["shape"]) > _MOST_DIMS:
        raise CodecError("a tensor has an unknown type or too many dimensions")
    for extent in plain["shape"]:
        if type(extent) is not int or not 0 <= extent < 2**40:
            raise CodecError("a tensor has a dimension that is no number of elements")
        nbytes *= extent
    if (device == "cpu" and nbytes > 16 * MAX_TENSORS) or nbytes > 2**60:
        raise CodecError("a tensor is larger than a message may be")
    return torch.empty(plain["shape"], dtype=dtype, device=device)


def lines_to_plain(lines: Sequence[SourceLine]) -> PlainData:
    """Lines of code, outermost first; of very many the innermost."""
    return [line_to_plain(line) for line in lines[-50:]]
