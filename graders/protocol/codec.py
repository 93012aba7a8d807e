"""Plain data as bytes and back: the only thing that crosses the border between a grader and an answer.

A message is a head (magic, length of the structure), a structure in MessagePack (https://msgpack.org) and, if
there are tensors, one safetensors file. Reading one executes nothing, whoever wrote it: no pickle, no class
named by the sender. MessagePack has types of its own for all that is plain but two: a tuple is written as the
list of its items, a tensor as its number in the file.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgpack
import torch
from safetensors import SafetensorError, TensorSpec, serialize
from safetensors.torch import load as load_tensors
from torch import Tensor

from graders.grading.answer import PlainData
from graders.protocol.near_plain import described, made_plain

MAX_TENSORS = 64 * 2**20
"""Bytes of all tensors of a message."""
MAX_STRUCTURE = 8 * 2**20
"""Bytes of the rest of it: they become Python objects, which may take some seventy times as many."""
MAX_MESSAGE = MAX_TENSORS + MAX_STRUCTURE + 2**20
"""Bytes of a whole message; those left are for the names, shapes and types of its tensors."""
MAX_DEPTH = 40
"""Lists in lists; far below Python's recursion limit."""

_HEAD = struct.Struct(">4sI")
_NUMBER = struct.Struct(">I")
_MAGIC = b"DTW2"
_TUPLE, _TENSOR = 1, 2
"""MessagePack's numbers for types of an application's own."""
_NESTED = frozenset({list, tuple, dict})
_ATOMS = frozenset({type(None), bool, float, str, bytes})
_PLAIN = "None, bool, int, float, str, bytes, tensors, and lists, tuples and text-keyed dictionaries of these"


Path = tuple[str | int, ...]
"""Keys and positions that lead to a part of a value."""


class CodecError(ValueError):
    """What was to be sent is no plain data, or what came is no valid message."""


class NotPlain(CodecError):
    """A part of a value, at `path`, cannot be sent. `problem` is what follows after the part's name."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{in_words('the value', path)} {problem}")
        self.path = path
        self.problem = problem


def in_words(name: str, path: Path) -> str:
    """Where a part stands: `the value['weights'][0]`."""
    return name + "".join(f"[{step!r}]" for step in path)


def encode(value: PlainData) -> bytes:
    """The message that `decode` turns into an equal value.

    Types are taken exactly, so that no subclass with methods of its own stands in for a number. The few that
    PyTorch itself hands out are made plain: a Parameter becomes its tensor, torch.Size or a named tuple a
    tuple, a number of NumPy's a number, an ordered dictionary a dictionary. Tensors arrive dense, on the CPU,
    without a graph.

    Raises NotPlain, which names the place and the type.
    """
    writer = _Writer()
    try:
        structure = writer.written(value)
    except (_Refused, TypeError, ValueError, OverflowError) as error:
        _name_the_place(value)
        raise NotPlain((), f"cannot be written down: {error}") from error
    if len(structure) > MAX_STRUCTURE:
        raise NotPlain(
            (), f"takes {len(structure):,} bytes without its tensors; allowed are {MAX_STRUCTURE:,}"
        )
    try:
        tensors = _write_tensors(writer.tensors) if writer.tensors else b""
    except SafetensorError as error:  # a type it has no name for
        raise NotPlain((), f"holds a tensor that cannot be written down: {error}") from error
    return _HEAD.pack(_MAGIC, len(structure)) + structure + tensors


def decode(message: bytes) -> PlainData:
    """The value in a message. Raises CodecError for anything that `encode` would not have written."""
    if len(message) > MAX_MESSAGE:
        raise CodecError(f"the message has {len(message):,} bytes, more than is allowed")
    if len(message) < _HEAD.size:
        raise CodecError(f"the message has {len(message)} bytes, too few for its head")
    magic, length = _HEAD.unpack_from(message)
    if magic != _MAGIC:
        raise CodecError("the message does not begin as one")
    if length > MAX_STRUCTURE or length > len(message) - _HEAD.size:
        raise CodecError(f"the message announces a structure of {length:,} bytes, which it cannot hold")
    start = _HEAD.size + length
    reader = _Reader(_read_tensors(message[start:]))
    try:
        value = reader.read(message[_HEAD.size : start])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CodecError(f"the structure of the message cannot be read: {error}") from error
    if reader.unused:
        raise CodecError(f"{len(reader.unused)} tensors of the message are not part of its value")
    return value


def _well_formed(value: Any, depth: int = 0) -> bool:
    """Whether all keys are text, and nothing is nested too deeply."""
    if type(value) not in _NESTED:
        return True
    items: Iterable[Any] = value
    if type(value) is dict:
        if not set(map(type, value)) <= {str}:
            return False
        items = value.values()
    if depth == MAX_DEPTH:
        return False
    # Most are lists of numbers and records of few fields, which are seen through at once.
    return _NESTED.isdisjoint(map(type, items)) or all(
        _well_formed(item, depth + 1) for item in items if type(item) in _NESTED
    )


class _Refused(Exception):
    """A part of a value is not plain; `_name_the_place` says which, and why."""


class _Writer:
    """Writes a value's structure and collects its tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._nbytes = 0

    def written(self, value: Any) -> bytes:
        """The structure of `value`. Raises _Refused, or what MessagePack raises."""
        if not _well_formed(value):
            raise _Refused
        return self._packed(value)

    def _packed(self, value: Any) -> bytes:
        # Strictly: what is no exact type of its own comes to `_special`.
        return msgpack.packb(  # type: ignore[no-any-return]
            value, default=self._special, strict_types=True, unicode_errors="surrogatepass"
        )

    def _special(self, value: Any) -> Any:
        """What MessagePack writes for a value that it has no type for."""
        kind = type(value)
        if kind is Tensor:
            return msgpack.ExtType(_TENSOR, _NUMBER.pack(self._add(value)))
        if kind is tuple:
            return msgpack.ExtType(_TUPLE, self._packed(list(value)))
        plain = made_plain(value)
        if type(plain) is kind or not _well_formed(plain):
            raise _Refused
        return self._special(plain) if type(plain) in (Tensor, tuple) else plain

    def _add(self, tensor: Tensor) -> int:
        """Keep a dense form of a tensor; returns its number."""
        self._nbytes += tensor.numel() * tensor.element_size() if _has_numbers(tensor) else MAX_TENSORS + 1
        if self._nbytes > MAX_TENSORS:
            raise _Refused
        number = len(self.tensors)
        self.tensors[str(number)] = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return number


def _has_numbers(tensor: Tensor) -> bool:
    # A nested tensor calls itself strided, and has no shape.
    kept = tensor.layout is torch.strided and not tensor.is_nested
    return kept and not tensor.is_quantized and not tensor.is_meta


def _name_the_place(value: Any, path: Path = (), nbytes: int = 0) -> int:
    """Raise NotPlain for the first part of a value that cannot be sent.

    nbytes: what the tensors before it take; returns what they take with its own.
    """
    value = made_plain(value)
    kind = type(value)
    if kind is Tensor:
        if not _has_numbers(value):
            problem = f"is a tensor without plain numbers in it ({value.layout}, {value.device})"
            raise NotPlain(path, problem)
        nbytes += value.numel() * value.element_size()
        if nbytes > MAX_TENSORS:
            raise NotPlain(path, f"makes the tensors take more than the {MAX_TENSORS:,} bytes allowed")
    elif kind is int:
        if not -(2**63) <= value < 2**64:
            problem = f"is a whole number of {value.bit_length():,} bits; 64 is the most, with its sign"
            raise NotPlain(path, problem)
    elif kind in _NESTED:
        if len(path) == MAX_DEPTH:
            raise NotPlain(path[:3], f"and so on, more than {MAX_DEPTH} levels deep, is nested too deeply")
        for key, item in value.items() if kind is dict else enumerate(value):
            if kind is dict and type(key) is not str:
                raise NotPlain(path, f"has a key that is {described(type(key))}; its keys must be text")
            nbytes = _name_the_place(item, (*path, key), nbytes)
    elif kind not in _ATOMS:
        raise NotPlain(path, f"is {described(kind)}; what can be handed over is {_PLAIN}")
    return nbytes


class _Reader:
    """Turns a structure back into a value, trusting none of it."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.unused = set(tensors)
        self._depth = 0

    def read(self, structure: bytes) -> PlainData:
        """The value of a structure. Raises CodecError, or what MessagePack raises."""
        value = self._unpacked(structure)
        if not _well_formed(value):
            raise CodecError("a key is no text, or something is nested too deeply")
        return value

    def _unpacked(self, structure: bytes) -> Any:
        # A date, which MessagePack knows, comes as a number: `encode` writes none.
        return msgpack.unpackb(structure, ext_hook=self._special, timestamp=1, unicode_errors="surrogatepass")

    def _special(self, code: int, data: bytes) -> Any:
        if code == _TENSOR:
            return self._tensor(data)
        if code != _TUPLE:
            raise CodecError(f"there is no type {code}")
        # Each level has its own copy of what is left.
        if self._depth == MAX_DEPTH:
            raise CodecError("tuples are nested too deeply")
        self._depth += 1
        items = self._unpacked(data)
        self._depth -= 1
        if type(items) is not list:
            raise CodecError("a tuple is not written as a list")
        return tuple(items)

    def _tensor(self, data: bytes) -> Tensor:
        name = str(*_NUMBER.unpack(data)) if len(data) == _NUMBER.size else ""
        if name not in self.unused:
            raise CodecError("it names a tensor that the message does not hold, or names one twice")
        self.unused.remove(name)
        return self._tensors[name]


def _write_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """As `safetensors.torch.save`, in a twentieth of its time, for tensors that are contiguous."""
    return serialize(
        {
            name: TensorSpec(
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tensor.shape,
                data_ptr=tensor.data_ptr(),
                data_len=tensor.nbytes,
            )
            for name, tensor in tensors.items()
        }
    )


def _read_tensors(data: bytes) -> dict[str, Tensor]:
    if not data:
        return {}
    try:
        return load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise CodecError(f"the tensors of the message cannot be read: {error}") from error
