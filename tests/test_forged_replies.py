"""A process that the student's code has taken over can reply anything: no grader is stopped by it.

The solution's replies are forged on their way to the grader: one part of each is another value, of its type
or of another. What was forged, and in which reply, follows from the seed.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from graders.grading.answer import DriverReply
from graders.grading.exercise import Exercise
from graders.grading.registry import load_all
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.guest.execute import perform
from graders.protocol.codec import CodecError, decode, encode
from graders.protocol.from_plain import from_plain
from graders.protocol.proxy import RemoteAnswer
from graders.protocol.requests import RunRequest
from tests.answers import solved

SEEDS = range(3)

# They start a Slurm cluster, mpirun, and horovodrun, whose replies tests/test_unit_04_horovod.py forges.
ELSEWHERE = ("batch_script", "mpi_ring_all_reduce", "six_steps")
EXERCISES = [each for unit in load_all().values() for each in unit.values() if each.name not in ELSEWHERE]

Path = tuple[str | int, ...]


def parts(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every part of a plain value, the value itself included, and where it stands."""
    yield path, value
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list | tuple)
        else ()
    )
    for key, item in inside:
        yield from parts(item, (*path, key))


def replaced(value: Any, path: Path, new: Any) -> Any:
    """The value with another part at `path`."""
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: replaced(value[key], tuple(rest), new)}
    items = [replaced(item, tuple(rest), new) if place == key else item for place, item in enumerate(value)]
    return type(value)(items)


def forged(value: Any, draw: random.Random) -> Any:
    """Something in place of the value, mostly of its type."""
    if draw.random() < 0.2:
        return draw.choice([None, True, 7, 0.5, "forged", b"forged", [], {}, (), torch.ones(2), [[None]]])
    match value:
        case bool():
            return not value
        case int():
            return draw.choice([0, -1, value + 1, 2**62, -(2**63)])
        case float():
            return draw.choice([math.nan, math.inf, -math.inf, 0.0, -1.0, 1.7e308])
        case str() | bytes():
            return value[:0]
        case Tensor():
            return draw.choice([value[:0] if value.dim() else value[None], torch.tensor(7), value * math.nan])
        case list() | tuple():
            return draw.choice([value[:0], value[:-1], value + value, value[::-1]])
        case dict():
            return dict(list(value.items())[1:])
        case _:
            return 5


@dataclass
class Forger:
    """A transport that forges one part of whatever the answer's driver returned."""

    answer: Callable[..., Any]
    draw: random.Random
    made: list[str] = field(default_factory=list)

    def exchange(self, request: bytes, _: float) -> bytes:
        reply = decode(self.performed(request))
        if "value" not in reply:
            return encode(reply)
        launched = isinstance(reply["value"], dict) and "events" in reply["value"]
        told = reply["value"]["results"] if launched else reply["value"]
        path, old = self.draw.choice([(path, old) for path, old in parts(told) if path or not launched])
        new = forged(old, self.draw)
        self.made.append(f"{path}: {old!r:.80} -> {new!r:.80}")
        told = replaced(told, path, new)
        return encode({**reply, "value": {**reply["value"], "results": told} if launched else told})

    def performed(self, request: bytes) -> bytes:
        return perform(self.answer, request)

    def run(self, _: RunRequest) -> None:
        """Ranks run where the answer is."""

    def keeps_line(self, _: str) -> bool:
        return True


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_no_forged_reply_stops_a_grader(exercise: Exercise, seed: int) -> None:
    # Invariant: every criterion gets a verdict, and none says that the grader itself stopped.
    forger = Forger(solved(exercise.unit)[exercise.name], random.Random(f"{exercise.name} {seed}"))
    answer = RemoteAnswer(exercise.name, "", forger)
    result = grade(exercise, answer, Rng(seed))
    assert not result.mistake, "\n".join([*forger.made, result.mistake])
    assert len(result.criteria) == len(exercise.rubric)


# --- replies read by their annotations


@dataclass(frozen=True, slots=True)
class Inner(DriverReply):
    values: list[Tensor | None]


@dataclass(frozen=True, slots=True)
class Outer(DriverReply):
    name: str
    pair: tuple[int, float]
    inner: dict[str, Inner]
    free: Any


PLAIN = {"name": "a", "pair": (1, 2.0), "inner": {"x": {"values": [torch.ones(2), None]}}, "free": {"any": 1}}


def test_a_reply_is_read_by_its_annotations() -> None:
    # Invariant: what is of the annotated types at every depth becomes the dataclasses, through the codec too.
    read = from_plain(PLAIN, Outer, "the reply")
    assert isinstance(read, Outer)
    assert isinstance(read.inner["x"], Inner)
    assert (read.name, read.pair, read.free) == ("a", (1, 2.0), {"any": 1})
    again = from_plain(decode(encode(read)), Outer, "the reply")
    assert torch.equal(again.inner["x"].values[0], torch.ones(2))


@pytest.mark.parametrize(
    ("path", "new", "said"),
    [
        (("name",), 5, "the reply's name is of the type int, not str"),
        (("pair",), [1, 2.0], "the reply's pair is of the type list, not tuple"),
        (("pair",), (1, 2.0, 3), "the reply's pair has 3 parts, not 2"),
        (("pair", 1), 2, "pair\\[1\\] is of the type int, not float"),
        (("pair", 0), True, "pair\\[0\\] is of the type bool, not int"),
        (("inner", "x", "values", 0), "t", "is of the type str, none of Tensor, NoneType"),
        (("inner", "x"), {}, "does not have exactly the fields values"),
        ((), 5, "the reply does not have exactly the fields name, pair, inner, free"),
    ],
)
def test_any_other_type_is_refused(path: Path, new: Any, said: str) -> None:
    with pytest.raises(CodecError, match=said):
        from_plain(replaced(PLAIN, path, new), Outer, "the reply")
