"""Plain data that anybody may have sent, as what an annotation says it is, or not at all."""

from contextlib import suppress
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from graders.grading.answer import DriverReply, PlainData
from graders.protocol.codec import CodecError


def from_plain(plain: PlainData, wanted: Any, what: str) -> Any:
    """`plain` as a value of the type `wanted`. what: how it is called in an error.

    wanted: Any, None, bool, int, float, str, bytes, Tensor, a `DriverReply`, and lists, tuples, dictionaries
    and unions of these. Types are taken exactly. Raises CodecError, which names the part that is another.
    """
    if wanted is Any:
        return plain
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return _one_of(plain, arguments, what)
    if origin is not None:
        _check_type(plain, origin, what)
        return _READERS[origin](plain, arguments, what)
    if isinstance(wanted, type) and issubclass(wanted, DriverReply):
        return _reply(plain, wanted, what)
    _check_type(plain, NoneType if wanted is None else wanted, what)
    return plain


def _check_type(plain: PlainData, wanted: type, what: str) -> None:
    if type(plain) is not wanted:
        raise CodecError(f"{what} is of the type {type(plain).__name__}, not {wanted.__name__}")


def _one_of(plain: PlainData, wanted: tuple[Any, ...], what: str) -> Any:
    for each in wanted:
        with suppress(CodecError):
            return from_plain(plain, each, what)
    names = ", ".join(getattr(each, "__name__", str(each)) for each in wanted)
    raise CodecError(f"{what} is of the type {type(plain).__name__}, none of {names}")


def _list(plain: PlainData, arguments: tuple[Any, ...], what: str) -> list[Any]:
    return [from_plain(item, arguments[0], f"{what}[{position}]") for position, item in enumerate(plain)]


def _tuple(plain: PlainData, arguments: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if arguments[-1] is Ellipsis:
        return tuple(_list(plain, arguments, what))
    if len(plain) != len(arguments):
        raise CodecError(f"{what} has {len(plain)} parts, not {len(arguments)}")
    parts = enumerate(zip(plain, arguments, strict=True))
    return tuple(from_plain(item, wanted, f"{what}[{position}]") for position, (item, wanted) in parts)


def _dict(plain: PlainData, arguments: tuple[Any, ...], what: str) -> dict[str, Any]:
    return {key: from_plain(item, arguments[1], f"{what}[{key[:40]!r}]") for key, item in plain.items()}


_READERS = {list: _list, tuple: _tuple, dict: _dict}


@cache
def _fields(wanted: type) -> dict[str, Any]:
    """The fields of a dataclass, and their types."""
    return get_type_hints(wanted)


def _reply(plain: PlainData, wanted: type[DriverReply], what: str) -> DriverReply:
    types = _fields(wanted)  # type: ignore[arg-type]
    if type(plain) is not dict or plain.keys() != types.keys():
        raise CodecError(f"{what} does not have exactly the fields {', '.join(types)}")
    return wanted(**{name: from_plain(plain[name], types[name], f"{what}'s {name}") for name in types})
