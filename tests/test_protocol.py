"""The codec between graders and answers: what goes through, and that nothing else does."""

import importlib
import inspect
import json
import math
import random
import struct
from collections import OrderedDict, namedtuple
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from safetensors.torch import save

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.communication.events import Event, Kind, SourceLine
from course_lib.runtime.request import PerRank, per_rank
from graders.grading.answer import AnswerFailed
from graders.grading.registry import load_all
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.guest.fork_server import driver_modules
from graders.protocol import codec
from graders.protocol.codec import CodecError, decode, encode
from graders.protocol.drivers import driver_name, find_driver
from graders.protocol.proxy import RemoteAnswer
from graders.protocol.records import events_from_plain, events_to_plain
from graders.protocol.requests import CallRequest, RunRequest, read_reply, read_request, write_request
from graders.units.drivers import call


def message(structure: Any, tensors: bytes = b"") -> bytes:
    """A message whose head is right, whatever follows: bytes as they are, else as MessagePack writes it."""
    packed = structure if isinstance(structure, bytes) else msgpack.packb(structure)
    return struct.pack(">4sI", b"DTW2", len(packed)) + packed + tensors


PLAIN = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    math.inf,
    "",
    "größer \ud800 \x00",
    b"\x00\xff",
    [],
    (),
    {},
    [1, (2, [3.0, {"a": (None,), "tensor": "a key like a tag"}])],
    {"b": 1, "a": [True, False]},
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_value_comes_back_equal(value: Any) -> None:
    # What went in comes out: the same value, of the same types all the way down, in the same order.
    back = decode(encode(value))
    assert back == value
    assert repr(back) == repr(value)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_tensor_comes_back_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    # Shape, dtype and every bit survive.
    tensor = (torch.randn(shape) * 10).to(dtype)
    back = decode(encode(tensor))
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_tensors_arrive_as_copies_without_graph() -> None:
    # Views, tied and learnable tensors arrive as plain ones that share nothing.
    weight = torch.nn.Parameter(torch.randn(3, 4))
    back = decode(encode({"weight": weight, "tied": weight, "view": weight.T, "row": weight[1].expand(2, 4)}))
    assert type(back["weight"]) is torch.Tensor
    assert not back["weight"].requires_grad
    assert torch.equal(back["view"], weight.detach().T)
    assert torch.equal(back["row"], weight[1].detach().expand(2, 4))
    back["tied"].zero_()
    assert torch.equal(back["weight"], weight.detach())


def test_what_pytorch_hands_out_is_made_plain() -> None:
    # A shape, a state dict, NumPy's numbers and pairs with names are what students return without noticing.
    pair = namedtuple("Pair", "loss accuracy")(0.25, 1)
    value = [torch.zeros(2, 3).shape, OrderedDict(a=1), np.float64(0.5), np.int64(7), np.bool_(True), pair]
    back = decode(encode(value))
    assert back == [(2, 3), {"a": 1}, 0.5, 7, True, (0.25, 1)]
    assert [type(item) for item in back] == [tuple, dict, float, int, bool, tuple]


class Endless(tuple[int, ...]):
    """A tuple that goes on for ever, if it is asked."""

    __slots__ = ()

    def __iter__(self) -> Any:
        while True:
            yield 1


def test_a_tuple_is_what_it_holds() -> None:
    # Invariant: of a tuple's class nothing is called.
    assert decode(encode(Endless((2, 3)))) == (2, 3)


class AlwaysEqual(float):
    """A number that equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = float.__hash__


class LyingTensor(torch.Tensor):
    """A tensor with methods of its own."""


class Pretender:
    """An object that says that it is a number."""

    __class__ = float  # type: ignore[assignment]


CYCLE: list[Any] = []
CYCLE.append(CYCLE)

NOT_PLAIN = [
    (AlwaysEqual(1.0), "AlwaysEqual (a subclass of float)"),
    (torch.zeros(2).as_subclass(LyingTensor), "LyingTensor (a subclass of Tensor)"),
    (Pretender(), "Pretender"),
    ([1, {"a": np.zeros(2)}], "the value[1]['a'] is a numpy.ndarray"),
    ({1: 2}, "a key that is a int"),
    ((x for x in []), "generator"),
    (len, "builtin_function_or_method"),
    (torch.zeros(2).to_sparse(), "sparse"),
    (torch.nested.nested_tensor([torch.zeros(2)]), "without plain numbers"),
    (torch.zeros(2, device="meta"), "meta"),
    ({"a": [10**400]}, "the value['a'][0] is a whole number of 1,329 bits"),
    (np.zeros(2, "M8[s]"), "numpy.ndarray"),
    ((1, {"a": OrderedDict({2: 3})}), "the value[1]['a'] has a key that is a int"),
    (CYCLE, "nested too deeply"),
    (torch.zeros(1).expand(2**40), "bytes allowed"),
    ("x" * (codec.MAX_STRUCTURE + 1), "bytes"),
]


@pytest.mark.parametrize(("value", "said"), NOT_PLAIN, ids=[said for _, said in NOT_PLAIN])
def test_anything_else_is_refused_with_its_place(value: Any, said: str) -> None:
    # What is no plain data, or pretends to be, is named and does not go through.
    with pytest.raises(CodecError) as caught:
        encode(value)
    assert said in str(caught.value)


def tensor(number: int = 0) -> msgpack.ExtType:
    """What stands for a tensor of the message."""
    return msgpack.ExtType(2, number.to_bytes(4, "big"))


def tuples(levels: int) -> msgpack.ExtType:
    """So many tuples, one in another."""
    inner: Any = []
    for _ in range(levels - 1):
        inner = [msgpack.ExtType(1, msgpack.packb(inner))]
    return msgpack.ExtType(1, msgpack.packb(inner))


ONE = save({"0": torch.zeros(1)})

HOSTILE = {
    "empty": b"",
    "no magic": b"nope" + b"\x00" * 20,
    "a pickle": b"\x80\x04\x95" + b"\x00" * 20,
    "length beyond the end": struct.pack(">4sI", b"DTW2", 2**31) + b"\x90",
    "nothing": message(b""),
    "cut off": message(b"\x92\x01"),
    "more than one": message(b"\x01\x02"),
    "an impossible byte": message(b"\xc1"),
    "text that is none": message(b"\xa1\xff"),
    "a list that is not there": message(b"\xdd\xff\xff\xff\xff"),
    "unknown type": message(msgpack.ExtType(7, b"os.system")),
    "tuple of no list": message(msgpack.ExtType(1, b"\x03")),
    "number as key": message({1: 2}),
    "bytes as key": message({"a": [{b"a": 1}]}),
    "list as key": message(b"\x81\x90\x01"),
    "tensor as key": message(b"\x81\xd6\x02\x00\x00\x00\x00\x01", ONE),
    "tensor that is not there": message(tensor()),
    "tensor of no number": message(msgpack.ExtType(2, b"0"), ONE),
    "tensor used twice": message([tensor(), tensor()], ONE),
    "tensor not used": message([], ONE),
    "tensors cut off": message(tensor(), save({"0": torch.zeros(100)})[:-8]),
    "tensors no tensors": message(tensor(), b"\xff" * 64),
    "tensor larger than its data": message(
        tensor(),
        (lambda head: struct.pack("<Q", len(head)) + head + b"\x00" * 8)(
            json.dumps({"0": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
        ),
    ),
    "nested beyond reason": message(b"\x91" * 100_000 + b"\x90"),
    "nested a little too far": message(b"\x91" * 200 + b"\x90"),
    "tuples nested beyond reason": message(tuples(900)),
    "tuples nested a little too far": message(tuples(41)),
    "dictionaries nested too far": message(b"\x81\xa0" * 200 + b"\x90"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_malformed_message_is_refused(data: bytes) -> None:
    # Whatever is no message gives one kind of error, and nothing else happens.
    with pytest.raises(CodecError):
        decode(data)


def test_what_another_writer_may_write_is_plain_too() -> None:
    # MessagePack's dates, and keys given twice, come out as numbers and as one key.
    assert decode(message(msgpack.Timestamp(5))) == 5.0
    assert decode(message(b"\x82\xa1a\x01\xa1a\x02")) == {"a": 2}


def test_oversized_message_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    # A message beyond the limits is not even looked into.
    monkeypatch.setattr(codec, "MAX_MESSAGE", 100)
    with pytest.raises(CodecError, match="more than is allowed"):
        decode(message("x" * 200))


def test_damage_anywhere_is_refused_or_harmless() -> None:
    # Cut short or with bytes exchanged, a message is read as plain data or refused: no other error escapes.
    whole = encode({"a": [1, (2.5, "x"), b"y"], "t": torch.arange(6.0).reshape(2, 3), "u": torch.zeros(0)})
    damaged = [whole[:length] for length in range(len(whole))]
    chance = random.Random(7)
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        damaged.append(bytes(data))
    for data in damaged:
        try:
            decode(data)
        except CodecError:
            continue


EVENT = Event(
    rank=1,
    op="send",
    kind=Kind.POINT_TO_POINT,
    start=0.0,
    end=1e-5,
    sequence=3,
    nbytes=16,
    sent=16,
    messages=1,
    peer=0,
    group=(0, 1),
    detail="float32[4]",
    line=SourceLine("<cell of ring>", 2, "ring"),
)
TABLE: dict[str, Any] = events_to_plain([EVENT])


def test_event_comes_back_equal() -> None:
    # Every field of an event survives, its source line too.
    silent = Event(0, "all_reduce", Kind.COLLECTIVE, 0, 1, 0)
    plain = decode(encode(events_to_plain([EVENT, silent])))
    assert events_from_plain(plain, 2, lambda _: True) == (EVENT, silent)


def test_source_line_of_a_foreign_file_is_dropped() -> None:
    # A line's text is read by whoever shows it: a submission must not point it at other people's files.
    forged = {**TABLE, "lines": [{"file": "/etc/passwd", "line": 1, "function": "f"}]}
    (event,) = events_from_plain(forged, 2, {"<cell of ring>"}.__contains__)
    assert event.line is None


FORGED = [
    {"rank": [2]},
    {"rank": [-1]},
    {"rank": [True]},
    {"rank": []},
    {"sent": [-8]},
    {"sent": [8, 8]},
    {"start": [math.nan]},
    {"end": [math.inf]},
    {"kind": ["magic"]},
    {"kind": [["magic"]]},
    {"groups": [[0, 1]]},
    {"groups": [(0, "1")]},
    {"groups": []},
    {"group": [1]},
    {"group": [-1]},
    {"peer": ["0"]},
    {"op": [None]},
    {"op": None},
    {"lines": [{"file": "x", "line": "1", "function": "f"}]},
    {"lines": [{"file": "x"}]},
    {"line": [True]},
    {"extra": [1]},
]


@pytest.mark.parametrize("change", FORGED, ids=repr)
def test_impossible_event_is_refused(change: dict[str, Any]) -> None:
    # An event that no run could have recorded does not reach a grader.
    with pytest.raises(CodecError):
        events_from_plain({**TABLE, **change}, 2, lambda _: True)


def test_every_driver_is_found_by_its_name() -> None:
    # Invariant: a name leads to its driver, be that of a unit's module, of a package of them, or shared.
    found = 0
    for module in map(importlib.import_module, driver_modules()):
        for driver in vars(module).values():
            if inspect.isfunction(driver) and driver.__module__ == module.__name__:
                assert find_driver(driver_name(driver)) is driver
                found += 1
    assert found > 100


def test_requests_come_back_equal() -> None:
    # The worker is asked what the grader asked, per-rank arguments and cluster included.
    call = CallRequest("unit_02.data.shards", ([1, 2], "x"), 2.5, 1.5)
    cluster = Cluster(nodes=2, devices_per_node=2, inter_node=Link(1e-3, 1e6), eager_limit=8, flops=1e9)
    cluster = cluster.with_straggler(1, 3).with_slow_link(0, 3).with_lost_rank(2, 0.5).with_jitter(4)
    launch = RunRequest(
        "unit_02.replicas.average", (per_rank([1, 2]), (3,)), 2, cluster, "simulated", 5.0, 1, True
    )
    assert read_request(write_request(call)) == call
    back = read_request(write_request(launch))
    assert back == launch
    assert [type(argument) for argument in back.arguments] == [PerRank, tuple]


NO_REPLIES: list[Any] = [
    None,
    [],
    {},
    {"value": 1},
    {"value": 1, "printed": 2},
    {"kind": "x", "report": None, "printed": ""},
    {"refused": 1},
    {"value": 1, "printed": "", "extra": 1},
]


@pytest.mark.parametrize("plain", NO_REPLIES, ids=repr)
def test_what_is_no_reply_is_refused(plain: Any) -> None:
    # A process that the student's code has taken over may send anything.
    with pytest.raises(CodecError):
        read_reply(encode(plain))


NO_EVENTS = events_to_plain([])
NO_RUNS: list[Any] = [
    None,
    {"results": [1], "outputs": ["", ""], "events": NO_EVENTS},
    {"results": [1, 2], "outputs": [""], "events": NO_EVENTS},
    {"results": [1, 2], "outputs": ["", 3], "events": NO_EVENTS},
    {"results": [1, 2], "outputs": ["", ""], "events": {}},
    {"results": [1, 2], "outputs": ["", ""], "events": []},
]


class Forging:
    """A transport over which always the same comes back."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def exchange(self, _request: bytes, _seconds: float) -> bytes:
        return encode({"value": self.plain, "printed": ""})

    def run(self, _request: RunRequest) -> None: ...

    def keeps_line(self, _file: str) -> bool:
        return True


@pytest.mark.parametrize("plain", NO_RUNS, ids=repr)
def test_forged_run_is_the_answers_failure(plain: Any) -> None:
    # A run that makes no sense is told as a failure of the answer, not as an error of the grader.
    answer = RemoteAnswer("f", "", Forging(plain))
    with pytest.raises(AnswerFailed) as caught:
        answer.launch(call, ranks=2)
    assert caught.value.kind == "Unreadable"


@pytest.mark.parametrize("plain", [5, None, [], {}, "x", math.nan, torch.empty(0)], ids=repr)
@pytest.mark.parametrize("name", ["resume", "combine_gradients", "evaluate", "fit_alpha_beta"])
def test_the_same_forged_reply_to_everything_stops_no_grader(name: str, plain: Any) -> None:
    # `drivers.average = lambda *_: 5` in a submission fails its criterion, and is no mistake of the grader.
    (exercise,) = (unit[name] for unit in load_all().values() if name in unit)
    result = grade(exercise, RemoteAnswer(name, "", Forging(plain)), Rng(1))
    assert (result.mistake, result.passed) == ("", False)
