"""What a grader asks of an answer, and what it is told: requests and replies as plain data.

The same messages go to an answer in this process (`graders.student.kernel_answer`) and to one in a sandbox
(`graders.host.sandbox`), so that both are graded alike.
"""

from dataclasses import dataclass
from typing import Any

from course_lib.cluster.topology import Cluster
from course_lib.launch.failures import Deadlock
from course_lib.runtime.request import PerRank, per_rank
from graders.grading.answer import FailureKind, PlainData
from graders.protocol.codec import CodecError, decode, encode
from graders.protocol.records import (
    cluster_from_plain,
    cluster_to_plain,
    deadlock_from_plain,
    deadlock_to_plain,
)


@dataclass(frozen=True, slots=True)
class CallRequest:
    """driver(answer, *arguments), once. computing: seconds of processor time; 0 for those of any call."""

    driver: str
    arguments: tuple[PlainData, ...]
    timeout: float
    computing: float = 0.0


@dataclass(frozen=True, slots=True)
class RunRequest:
    """driver(answer, *arguments) on every rank; an argument may be `per_rank`."""

    driver: str
    arguments: tuple[PlainData, ...]
    ranks: int
    cluster: Cluster | None
    on: str
    timeout: float
    seed: int
    memory: bool = False


@dataclass(frozen=True, slots=True)
class RankRequest:
    """driver(answer, *arguments) as one rank of a launch whose messages go through the grader's scheduler.

    There is no reply to it, but what `graders.protocol.rank_calls` describes.
    """

    driver: str
    arguments: tuple[PlainData, ...]
    rank: int
    ranks: int
    cluster: Cluster
    timeout: float
    seed: int
    memory: bool = False


Request = CallRequest | RunRequest


@dataclass(frozen=True, slots=True)
class Value:
    """It came to an end, and this came out. `printed` is what the answer printed meanwhile."""

    value: PlainData
    printed: str


@dataclass(frozen=True, slots=True)
class Failure:
    """It came to no end; see `graders.grading.answer.AnswerFailed`."""

    kind: FailureKind
    report: str
    printed: str
    error: str = ""
    deadlock: Deadlock | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request itself makes no sense: a mistake of the grader, not of the answer."""

    reason: str


Reply = Value | Failure | Refusal


def write_request(request: Request | RankRequest) -> bytes:
    """The request as a message."""
    arguments = [_argument_to_plain(argument) for argument in request.arguments]
    plain = {"driver": request.driver, "arguments": arguments, "timeout": float(request.timeout)}
    if isinstance(request, CallRequest):
        return encode({"do": "call", **plain, "computing": float(request.computing)})
    cluster = None if request.cluster is None else cluster_to_plain(request.cluster)
    plain |= {"ranks": request.ranks, "cluster": cluster, "seed": request.seed, "memory": request.memory}
    if isinstance(request, RankRequest):
        return encode({"do": "rank", **plain, "rank": request.rank})
    return encode({"do": "launch", **plain, "on": request.on})


NO_MORE_REQUESTS = encode({"do": "rest"})
"""Instead of a request: the grader is done with the answer."""


def read_request(message: bytes) -> Request | RankRequest | None:
    """The request in a message that a grader wrote, None for `NO_MORE_REQUESTS`."""
    plain = decode(message)
    if plain["do"] == "rest":
        return None
    arguments = tuple(_argument_from_plain(argument) for argument in plain["arguments"])
    if plain["do"] == "call":
        return CallRequest(plain["driver"], arguments, plain["timeout"], plain["computing"])
    cluster = None if plain["cluster"] is None else cluster_from_plain(plain["cluster"])
    driver, ranks, timeout = plain["driver"], plain["ranks"], plain["timeout"]
    seed, memory = plain["seed"], plain["memory"]
    if plain["do"] == "rank":
        assert cluster is not None
        return RankRequest(driver, arguments, plain["rank"], ranks, cluster, timeout, seed, memory)
    return RunRequest(driver, arguments, ranks, cluster, plain["on"], timeout, seed, memory)


def write_reply(reply: Reply) -> bytes:
    """The reply as a message. Raises CodecError if its value is no plain data."""
    match reply:
        case Value(value, printed):
            return encode({"value": value, "printed": printed})
        case Failure(kind, report, printed, error, deadlock):
            waits = None if deadlock is None else deadlock_to_plain(deadlock)
            told = {"kind": kind.value, "report": report, "printed": printed, "error": error}
            return encode({**told, "deadlock": waits})
        case Refusal(reason):
            return encode({"refused": reason})


def read_reply(message: bytes) -> Reply:
    """The reply in a message that anybody may have written. Raises CodecError."""
    plain = decode(message)
    names = frozenset(plain) if type(plain) is dict else frozenset()
    if names == {"value", "printed"}:
        return Value(plain["value"], _text(plain, "printed"))
    if names == {"kind", "report", "printed", "error", "deadlock"}:
        waits = None if plain["deadlock"] is None else deadlock_from_plain(plain["deadlock"])
        report, printed, error = (_text(plain, name) for name in ("report", "printed", "error"))
        return Failure(kind_from_plain(plain["kind"]), report, printed, error, waits)
    if names == {"refused"}:
        return Refusal(_text(plain, "refused"))
    raise CodecError("the message is no reply")


def kind_from_plain(plain: PlainData) -> FailureKind:
    """The kind of failure that this text names. Raises CodecError."""
    try:
        return FailureKind(plain)
    except (ValueError, TypeError) as error:
        raise CodecError("there is no such kind of failure") from error


def _text(plain: dict[str, Any], name: str) -> str:
    if type(plain[name]) is not str:
        raise CodecError(f"the reply's {name} is no text")
    return str(plain[name])


def _argument_to_plain(argument: PlainData) -> PlainData:
    if isinstance(argument, PerRank):
        return {"per_rank": list(argument)}
    return {"all": argument}


def _argument_from_plain(plain: PlainData) -> PlainData:
    return per_rank(plain["per_rank"]) if "per_rank" in plain else plain["all"]
