"""Plain data as bytes and back: the only thing that crosses the border between a grader and an answer.

A message is a head (magic, length of the structure), a JSON structure and, if there are tensors, one
safetensors file. Reading one executes nothing, whoever wrote it: no pickle, no class named by the sender.
In the structure every JSON object has exactly one key, its tag: `{"tuple": [...]}`, `{"dict": [[key, value],
...]}`, `{"bytes": base64}`, `{"tensor": index}`.
"""

import base64
import binascii
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, TensorSpec, serialize
from safetensors.torch import load as load_tensors
from torch import Tensor

from graders.grading.answer import PlainData
from graders.protocol.near_plain import described, made_plain

MAX_TENSORS = 64 * 2**20
"""Bytes of all tensors of a message."""
MAX_STRUCTURE = 16 * 2**20
"""Bytes of its JSON part: it becomes Python objects, which take some twenty times its size."""
MAX_MESSAGE = MAX_TENSORS + MAX_STRUCTURE + 2**20
"""Bytes of a whole message; the rest is for the names, shapes and types of its tensors."""
MAX_DEPTH = 40
"""Lists in lists; far below Python's recursion limit."""

MOST_BITS = 64
"""Of a whole number: a larger one is more than a tensor can hold, and would stop whoever computes with it."""

_LARGE = 2**MOST_BITS

_HEAD = struct.Struct(">4sI")
_MAGIC = b"DTW1"
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
    encoder = _Encoder()
    plain = encoder.plain(value, ())
    structure = json.dumps(plain, separators=(",", ":")).encode("ascii")
    if len(structure) > MAX_STRUCTURE:
        raise NotPlain((), f"takes {len(structure):,} bytes as text; allowed are {MAX_STRUCTURE:,}")
    try:
        tensors = _write_tensors(encoder.tensors) if encoder.tensors else b""
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
    tensors = _read_tensors(message[start:])
    decoder = _Decoder(tensors)
    value = decoder.value(_read_structure(message[_HEAD.size : start]), 0)
    if decoder.unused:
        raise CodecError(f"{len(decoder.unused)} tensors of the message are not part of its value")
    return value


_ATOMS = frozenset({type(None), bool, float, str})
"""What is written as it is; an int, too, once it has been measured."""
_WITH_INT = _ATOMS | {int}
_EXACT = _ATOMS | {int, bytes, Tensor, list, tuple, dict}


def _written_as_they_are(items: Sequence[Any]) -> bool:
    """Whether all of them are atoms, or whole numbers that are not too large: most of what is sent is."""
    kinds = set(map(type, items))
    if int not in kinds:
        return kinds <= _ATOMS
    if len(kinds) == 1:
        return bool(min(items) > -_LARGE and max(items) < _LARGE)
    return kinds <= _WITH_INT and all(-_LARGE < item < _LARGE for item in items if type(item) is int)


class _Encoder:
    """Turns a value into a JSON structure and collects its tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._nbytes = 0

    def plain(self, value: Any, path: Path) -> Any:
        """The JSON structure of `value`, which stands at `path`."""
        if len(path) > MAX_DEPTH:
            raise NotPlain(path[:3], f"and so on, more than {MAX_DEPTH} levels deep, is nested too deeply")
        kind = type(value)
        if kind not in _EXACT:
            value = made_plain(value)
            kind = type(value)
        if kind is int and value.bit_length() > MOST_BITS:
            raise NotPlain(path, f"is a whole number of {value.bit_length():,} bits; it may have {MOST_BITS}")
        if kind in _ATOMS or kind is int:
            return value
        # Most of what is sent are these, in records: they need no path to be named by.
        atoms = _ATOMS if len(path) < MAX_DEPTH else ()
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode("ascii")}
        if kind is Tensor:
            return {"tensor": self._add(value, path)}
        if kind in (list, tuple):
            items = (
                list(value)
                if atoms and _written_as_they_are(value)
                else [self.plain(item, (*path, position)) for position, item in enumerate(value)]
            )
            return items if kind is list else {"tuple": items}
        if kind is dict:
            return {
                "dict": [
                    [key, item] if type(item) in atoms and type(key) is str else self._pair(key, item, path)
                    for key, item in value.items()
                ]
            }
        raise NotPlain(path, f"is {described(kind)}; what can be handed over is {_PLAIN}")

    def _pair(self, key: Any, item: Any, path: Path) -> list[Any]:
        if type(key) is not str:
            raise NotPlain(path, f"has a key that is {described(type(key))}; its keys must be text")
        return [key, self.plain(item, (*path, key))]

    def _add(self, tensor: Tensor, path: Path) -> int:
        """Keep a dense form of a tensor; returns its index."""
        # A nested tensor calls itself strided, and has no shape.
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
            raise NotPlain(
                path, f"is a tensor without plain numbers in it ({tensor.layout}, {tensor.device})"
            )
        self._nbytes += tensor.numel() * tensor.element_size()
        if self._nbytes > MAX_TENSORS:
            raise NotPlain(path, f"makes the tensors take more than the {MAX_TENSORS:,} bytes allowed")
        index = len(self.tensors)
        self.tensors[str(index)] = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return index


class _Decoder:
    """Turns a JSON structure back into a value, trusting none of it."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.unused = set(tensors)

    def value(self, structure: Any, depth: int) -> PlainData:
        if depth > 2 * MAX_DEPTH + 2:  # a tagged level is an object and its list
            raise CodecError("the message is nested too deeply")
        if type(structure) in _ATOMS:
            return structure
        if type(structure) is int:
            if structure.bit_length() > MOST_BITS:
                raise CodecError(f"a whole number of the message has more than {MOST_BITS} bits")
            return structure
        if isinstance(structure, list):
            if _written_as_they_are(structure):
                return structure
            return [item if type(item) in _ATOMS else self.value(item, depth + 1) for item in structure]
        if len(structure) != 1:
            raise CodecError(f"an object of the message has {len(structure)} keys instead of one tag")
        (tag, content), *_ = structure.items()
        read = self._READERS.get(tag)
        if read is None:
            raise CodecError(f"the message has an unknown tag {tag[:40]!r}")
        return read(self, content, depth + 1)

    def _tuple(self, content: Any, depth: int) -> tuple[PlainData, ...]:
        items = _listed(content, "tuple")
        return tuple(items if _written_as_they_are(items) else [self.value(item, depth) for item in items])

    def _dict(self, content: Any, depth: int) -> dict[str, PlainData]:
        made: dict[str, PlainData] = {}
        for pair in _listed(content, "dict"):
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise CodecError(
                    "a dictionary of the message holds something that is no pair of text and value"
                )
            if pair[0] in made:
                raise CodecError(f"a dictionary of the message has the key {pair[0][:40]!r} twice")
            item = pair[1]
            made[pair[0]] = item if type(item) in _ATOMS else self.value(item, depth)
        return made

    def _bytes(self, content: Any, _: int) -> bytes:
        if not isinstance(content, str):
            raise CodecError("bytes of the message are not written as text")
        try:
            return base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise CodecError(f"bytes of the message are not base64: {error}") from error

    def _tensor(self, content: Any, _: int) -> Tensor:
        name = str(content) if type(content) is int else ""
        if name not in self.unused:
            raise CodecError("the message names a tensor that it does not hold, or names one twice")
        self.unused.remove(name)
        return self._tensors[name]

    _READERS: ClassVar[dict[str, Callable[["_Decoder", Any, int], PlainData]]] = {
        "tuple": _tuple,
        "dict": _dict,
        "bytes": _bytes,
        "tensor": _tensor,
    }


def _read_structure(text: bytes) -> Any:
    try:
        return json.loads(text.decode("ascii"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"the structure of the message is not valid JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) != 1:
        raise CodecError(f"an object of the message has {len(pairs)} keys instead of one tag")
    return dict(pairs)


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


def _listed(content: Any, tag: str) -> list[Any]:
    if not isinstance(content, list):
        raise CodecError(f"a {tag} of the message is not written as a list")
    return content
