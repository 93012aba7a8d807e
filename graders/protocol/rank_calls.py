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

from course_lib.runtime.communication.call import Call, Group, Operation, payload_of
from course_lib.runtime.communication.events import SourceLine
from course_lib.runtime.communication.memory import MemoryKind
from course_lib.runtime.communication.semantics import COLLECTIVES
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
    "strides": (tuple, type(None)),
    "shape_only": (bool,),
    "asynchronous": (bool,),
    "line": (dict, type(None)),
}

_MEMORY_KINDS = frozenset(kind.value for kind in MemoryKind)
QUESTION_FIELDS: dict[str, tuple[type, ...]] = {"do": (str,), "call": (int,), "line": (dict, type(None))}
SPAN_FIELDS: dict[str, tuple[type, ...]] = {
    "do": (str,),
    "label": (str,),
    "start": (float, int),
    "end": (float, int),
}
RETURNED_FIELDS: dict[str, tuple[type, ...]] = {"do": (str,), "printed": (str,), "value": (type(None),)}
RAISED_FIELDS = dict.fromkeys(("do", "printed", "type", "message", "traceback"), (str,))
_COPY_FIELDS: dict[str, tuple[type, ...]] = {
    "do": (str,),
    "nbytes": (int,),
    "to_host": (bool,),
    "earliest": (float, int),
}
_HOST_WAIT_FIELDS: dict[str, tuple[type, ...]] = {
    "do": (str,),
    "clock": (float, int, type(None)),
    "line": (dict, type(None)),
}
_MOST_SECONDS, _MOST_STREAMS = 1e9, 1000
NO_LINE = SourceLine("unknown", 0, "")
"""Where a rank waits that does not tell."""


def post_to_plain(operation: Operation, inputs: Sequence[Tensor]) -> PlainData:
    """A call that a rank posts, with these copies of its inputs."""
    call = operation.call
    return {
        "do": "post",
        "op": call.op,
        "group": call.group.name,
        "members": call.group.members,
        "inputs": [_size(tensor) for tensor in inputs] if call.shape_only else list(inputs),
        "outputs": [_output_to_plain(tensor, operation.inputs) for tensor in operation.outputs],
        "peer": operation.peer,
        "tag": call.tag,
        "reduction": call.reduction,
        "strides": call.strides,
        "shape_only": call.shape_only,
        "asynchronous": call.asynchronous,
        "line": line_to_plain(call.line),
    }


def post_from_plain(
    plain: Any, rank: int, group: Callable[[str, Sequence[int]], Group], keep_line: Callable[[str], bool]
) -> Operation:
    """The call, with tensors of the grader's own. Raises CodecError if it is none that a rank can make.

    group: see `CallMatcher.group`; it is asked only for members that are ranks of the run, `rank` among them.
    """
    check_fields(plain, _FIELDS, "a call")
    op, peer = plain["op"], plain["peer"]
    _check_names(plain, rank)
    whole = group(plain["group"], plain["members"])
    inputs, outputs = _tensors_from_plain(plain)
    payload = payload_of(op, inputs, outputs)
    call = Call(
        op,
        whole,
        None if op in _MESSAGES else peer,
        plain["tag"],
        plain["reduction"],
        payload.shape,
        payload.parts,
        payload.nbytes,
        _strides_from_plain(plain["strides"]),
        plain["shape_only"],
        plain["asynchronous"],
        line_from_plain(plain["line"], keep_line),
    )
    return call.operation(rank, peer, tuple(inputs), tuple(outputs))


def memory_from_plain(plain: Any) -> tuple[str, int]:
    """The kind of memory and its bytes. Raises CodecError."""
    check_fields(plain, {"do": (str,), "kind": (str,), "nbytes": (int,)}, "a change of memory")
    if plain["kind"] not in _MEMORY_KINDS or not 0 <= plain["nbytes"] < 2**63:
        raise CodecError("it holds memory that there is not")
    return plain["kind"], plain["nbytes"]


def copy_from_plain(plain: Any) -> tuple[int, bool, float]:
    """Of a copy between device and host: bytes, whether to the host, not before when. Raises CodecError."""
    check_fields(plain, _COPY_FIELDS, "a copy")
    if not (0 <= plain["nbytes"] < 2**63 and 0 <= plain["earliest"] < _MOST_SECONDS):
        raise CodecError("it copies what there is not")
    return plain["nbytes"], plain["to_host"], float(plain["earliest"])


def clock_from_plain(plain: Any) -> float:
    """The virtual time that a rank waits for, in seconds. Raises CodecError."""
    check_fields(plain, {"do": (str,), "clock": (float, int)}, "a wait")
    return _instant(plain["clock"])


def host_wait_from_plain(plain: Any, keep_line: Callable[[str], bool]) -> tuple[float | None, SourceLine]:
    """The virtual time that a rank's host waits for, or None: for its device; and in which line.

    Raises CodecError.
    """
    check_fields(plain, _HOST_WAIT_FIELDS, "a host's wait")
    until = None if plain["clock"] is None else _instant(plain["clock"])
    return until, line_from_plain(plain["line"], keep_line) or NO_LINE


def stream_from_plain(plain: Any) -> int:
    """The number of the stream that a rank goes on in. Raises CodecError."""
    check_fields(plain, {"do": (str,), "stream": (int,)}, "another stream")
    if not 0 <= plain["stream"] < _MOST_STREAMS:
        raise CodecError("there is no such stream")
    return int(plain["stream"])


def _instant(clock: float) -> float:
    if not 0 <= clock < _MOST_SECONDS:
        raise CodecError("it waits for a time that there is not")
    return float(clock)


_MESSAGES = ("send", "recv")


def _check_names(plain: Any, rank: int) -> None:
    """Raise CodecError if a call has an operation, a group or a peer that there is not."""
    members, peer = plain["members"], plain["peer"]
    if plain["op"] not in COLLECTIVES and plain["op"] not in _MESSAGES:
        raise CodecError(f"there is no call {plain['op'][:40]!r}")
    if len(plain["group"]) > _LONGEST_NAME or not _REDUCTION.fullmatch(plain["reduction"]):
        raise CodecError("a call has an impossible group or reduction")
    if rank not in members or len(set(members)) != len(members):
        raise CodecError("a call is in a group of other ranks")
    if peer is not None and peer not in members:
        raise CodecError("a call names a rank that is not in its group")
    if plain["op"] == "send" and peer is None:
        raise CodecError("a message has no receiver")


def _strides_from_plain(plain: Any) -> tuple[int, ...] | None:
    """What the process says of them: the tensors come as copies, which are contiguous."""
    if plain is not None and (
        len(plain) > _MOST_DIMS or any(type(each) is not int or not 0 <= each < 2**63 for each in plain)
    ):
        raise CodecError("a tensor has impossible strides")
    strides: tuple[int, ...] | None = plain
    return strides


def _tensors_from_plain(plain: Any) -> tuple[list[Tensor], list[Tensor]]:
    """What the call reads and what it writes. Raises CodecError if that cannot be."""
    inputs = [_input_from_plain(each, plain["shape_only"]) for each in plain["inputs"]]
    outputs = [_output_from_plain(each, inputs, plain["shape_only"]) for each in plain["outputs"]]
    if sum(tensor.nbytes for tensor in outputs if not tensor.is_meta) > MAX_TENSORS:
        raise CodecError("a call asks for more bytes than a message may have")
    counts, sends = (len(inputs), len(outputs)), plain["op"] == "send"
    if plain["op"] in _MESSAGES and counts != (sends, not sends):
        raise CodecError("a message has not exactly one tensor")
    return inputs, outputs


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
