"""Ranks that are processes: their messages pass through the grader, as if they were threads of a kernel."""

from collections.abc import Iterator

import pytest
import torch

from course_lib.cluster.device import Device
from course_lib.cluster.topology import Cluster
from graders.grading.answer import AnswerFailed, Observed
from graders.host.sandbox import Sandbox
from graders.isolation.backends import backend_here
from graders.isolation.usage import Bounds
from graders.protocol.limits import Limits
from graders.protocol.requests import RunRequest
from graders.submissions.cells import Cell
from graders.submissions.read import Submission
from graders.units.drivers import call
from tests.forks import counted_forks

pytestmark = pytest.mark.skipif(
    not backend_here().stands, reason="no sandbox stands here: install bubblewrap or Apptainer"
)

IMPORTS = "import gc, os, sys, time\nimport torch\nimport torch.distributed as dist\ncount = 0"
SECONDS = 4.0
"""For a launch: only what never ends takes so long."""
_cases: list[Cell] = []


def case(body: str) -> str:
    """Put a function of x with this body into the submission that the cases share; returns its name."""
    name = f"case_{len(_cases)}"
    numbered = ["me, other = dist.get_rank(), 1 - dist.get_rank()", *body.splitlines()]
    lines = "\n".join(f"    {line}" for line in numbered)
    _cases.append(Cell(f"<cell of {name}>", f"def {name}(x):\n{lines}"))
    return name


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    cells = (Cell("<imports>", IMPORTS), *_cases)
    with Sandbox(Submission("cases.ipynb", cells, main=True), Limits(call=5, grace=1)) as made:
        yield made


def observe(sandbox: Sandbox, name: str, seconds: float = SECONDS) -> Observed:
    """What a launch of a case on two ranks shows."""
    with sandbox.answer(name) as answer:
        return answer.launch(call, torch.arange(4.0), ranks=2, timeout=seconds)


def failure(sandbox: Sandbox, name: str, seconds: float = SECONDS) -> AnswerFailed:
    with pytest.raises(AnswerFailed) as caught:
        observe(sandbox, name, seconds)
    return caught.value


# --- the same as threads

ALIKE = {
    "collectives": (
        "parts = [torch.empty(4) for _ in range(2)]\ndist.all_gather(parts, x + me)\n"
        "dist.reduce(x, dst=1)\ndist.broadcast(x, src=1)\nlines = list(x.view(2, 2).unbind())\n"
        "dist.reduce_scatter(x[:2], [part.clone() for part in lines], op=dist.ReduceOp.MAX)\n"
        "out = torch.empty(4)\ndist.all_to_all_single(out, x)\n"
        "found = [torch.empty(4), torch.empty(4)] if me == 0 else None\ndist.gather(out, found, dst=0)\n"
        "dist.scatter(x, found, src=0)\nreturn parts, x, out, found"
    ),
    "an asynchronous all-reduce": (
        "work = dist.all_reduce(x, async_op=True)\nbefore = x.clone()\nwork.wait()\nreturn before, x"
    ),
    "asking until it is over": (
        "if me == 0:\n    work, asked = dist.irecv(x, 1), 0\n    while not work.is_completed(): asked += 1\n"
        "    return asked, x\ndist.send(x * 5, 0)\nreturn x"
    ),
    "from anyone": "if me == 0: dist.send(x, 1); return None\nreturn dist.recv(x), x",
    "a monitored barrier": "dist.monitored_barrier()\nreturn x",
    "a group of one": (
        "group = dist.new_group([1])\nif me == 1: dist.all_reduce(x, group=group)\ndist.barrier()\nreturn x"
    ),
    "random numbers, output and environment": "print('I am', os.environ['RANK'])\nreturn torch.rand(2)",
    "global variables": "global count\ncount += 1\nreturn count",
    "futures in hooks of a backward pass": (
        "model, futures = torch.nn.Linear(4, 2), []\n"
        "def send(p): futures.append(dist.all_reduce(p.grad, async_op=True).get_future())\n"
        "for p in model.parameters(): p.register_post_accumulate_grad_hook(send)\n"
        "model(x + me).sum().backward()\n"
        "return [f.wait() for f in futures], [p.grad for p in model.parameters()]"
    ),
    "streams": (
        "side, begin, end = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in 'be')\n"
        "y = x.outer(x) @ x\nside.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(side):\n    begin.record()\n    dist.all_reduce(y)\n    end.record()\n"
        "z = x.outer(x) @ x\ntorch.cuda.current_stream().wait_stream(side)\ntorch.cuda.synchronize()\n"
        "return begin.elapsed_time(end), (y + z).sum().item()"
    ),
    "shapes alone": "y = torch.empty(5, device='meta')\ndist.all_reduce(y)\nreturn list(y.shape)",
}
ALIKE_CASES = {what: case(body) for what, body in ALIKE.items()}
COMPUTING = Cluster(devices_per_node=2, flops=1e9, memory_bandwidth=1e9)
QUEUED = Cluster(devices_per_node=2, device=Device(1e9, 1e9, dispatch_seconds=1e-5))


@pytest.mark.parametrize("cluster", [None, COMPUTING, QUEUED], ids=["", "computing, followed", "a queue"])
@pytest.mark.parametrize("what", ALIKE)
def test_ranks_in_processes_are_like_threads(sandbox: Sandbox, what: str, cluster: Cluster | None) -> None:
    # Results, output, and every event with its times and lines are the same; what is held in memory too.
    followed = cluster is not None
    request = RunRequest("call", (torch.arange(4.0),), 2, cluster, "simulated", SECONDS, 0, followed)
    with sandbox.answer(ALIKE_CASES[what]) as answer:
        for _ in range(2):
            through_grader, in_threads = answer.observe(request), answer.observe_there(request)
            assert repr(through_grader) == repr(in_threads)
            assert not followed or through_grader.memory.peak == in_threads.memory.peak >= 16


ENDS = {
    "deadlock": ("dist.recv(x, other)", "Deadlock", "rank 0 waits for rank 1 to send"),
    "other strides": (
        "y = x.view(2, 2)\ndist.all_reduce(y.t() if me else y)",
        "CollectiveMismatch",
        "rank 1: all_reduce(float32[2, 2], strides [1, 2], SUM)",
    ),
    "other shapes": ("dist.all_reduce(x[:1] if me else x)", "CollectiveMismatch", "float32[1]"),
    "exception": (
        "if me == 1: raise KeyError(me)\ndist.barrier()",
        "RankFailed",
        "rank 1 failed with KeyError",
    ),
    "a tensor that changes before it is read": (
        "if me == 0: work = dist.isend(x, 1); x.add_(10); work.wait()\nelse: dist.recv(x, 0)",
        "RankFailed",
        "was written before wait()",
    ),
    "a call that nobody waits for": (
        "if me == 0: dist.irecv(x, 1)\nelse: dist.send(x + 1, 0)",
        "LeftOpen",
        "never waited for",
    ),
    "no such rank": ("dist.send(x, 2)", "RankFailed", "There is no rank 2"),
    "endless": ("if me == 1:\n    while True: pass\ndist.barrier()", "TimedOut", "line 4: while True: pass"),
}
END_CASES = {what: case(body) for what, (body, _, _) in ENDS.items()}


@pytest.mark.parametrize("what", ENDS)
def test_runs_end_as_with_threads(sandbox: Sandbox, what: str) -> None:
    # Kind and report are the same, to the line.
    _, kind, said = ENDS[what]
    seconds = SECONDS if what == "endless" else 60.0
    error = failure(sandbox, END_CASES[what], seconds)
    request = RunRequest("call", (torch.arange(4.0),), 2, None, "simulated", seconds, 0)
    with sandbox.answer(END_CASES[what]) as answer, pytest.raises(AnswerFailed) as caught:
        answer.observe_there(request)
    assert error.kind == caught.value.kind == kind
    assert error.report == caught.value.report
    assert said in error.report


# --- what only processes can do

BREAKS = {
    "one ends": (
        "os._exit(3) if me else dist.barrier()",
        "Ended",
        "Your code ended the whole process of rank 1 (exit status 3)",
    ),
    "one never stops": (
        "while me:\n    try: time.sleep(9)\n    except BaseException: pass\ndist.barrier()",
        "TimedOut",
        "Rank 1 did not stop by itself",
    ),
    "no plain data": ("return object()", "NotPlainData", "the result is a object"),
}
BREAK_CASES = {what: case(body) for what, (body, _, _) in BREAKS.items()}


@pytest.mark.parametrize("what", BREAKS)
def test_rank_that_breaks_is_named(sandbox: Sandbox, what: str) -> None:
    _, kind, said = BREAKS[what]
    error = failure(sandbox, BREAK_CASES[what])
    assert error.kind == kind
    assert said in error.report


LOSE = case("""dist.barrier()
if os.path.exists("/tmp/again"): os._exit(1)
open("/tmp/again", "w").close()
return 0""")


def test_ranks_serve_many_launches_and_are_replaced_when_lost(sandbox: Sandbox) -> None:
    # A second launch finds the same processes; after they ended, a third one finds others.
    with sandbox.answer(LOSE) as answer:
        assert answer.launch(call, 0, ranks=2).results == [0, 0]
        with pytest.raises(AnswerFailed):
            answer.launch(call, 0, ranks=2)
        assert answer.launch(call, 0, ranks=2).results == [0, 0]


FAILS = {what: END_CASES[what] for what in ("deadlock", "exception", "endless")}
SINCE = case("global count\ncount += 1\ndist.barrier()\nif x: dist.recv(torch.ones(1), other)\nreturn count")


@pytest.mark.parametrize("what", FAILS)
def test_processes_outlive_a_failed_launch(sandbox: Sandbox, forks: list[Bounds], what: str) -> None:
    # Only what served the answer ends; the next launch finds the submission as its cells have left it.
    seconds = 1.0 if what == "endless" else SECONDS
    with sandbox.answer(FAILS[what]) as answer:
        for _ in range(2):
            with pytest.raises(AnswerFailed):
                answer.launch(call, torch.arange(4.0), ranks=2, timeout=seconds)
    with sandbox.answer(SINCE) as answer:
        with pytest.raises(AnswerFailed):
            answer.launch(call, 1, ranks=2)
        assert answer.launch(call, 0, ranks=2).results == [1, 1]
    assert len(forks) <= 2


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[Bounds]:
    """An entry for every process that is started for the submission."""
    return counted_forks(monkeypatch)


COMPUTES = case("print('here')\nwhile True: pass")


def test_a_loop_without_end_costs_its_processor_time_once(sandbox: Sandbox, forks: list[Bounds]) -> None:
    # What the first rank does for 6 s, the others are not begun for.
    with sandbox.answer(COMPUTES) as answer:
        # On a busy machine 6 s of processor time take longer.
        with pytest.raises(AnswerFailed, match=r"stopped after 1?\d?\d s") as caught:
            answer.launch(call, 0, ranks=2, timeout=200.0)
        assert caught.value.kind == "TimedOut"
        assert answer.printed == "[rank 0] here\n"
    assert observe(sandbox, PLAIN).results == [None, None]
    assert len(forks) <= 2


OLD_NAMES = case("""import warnings
dist.all_gather_into_tensor(torch.empty(8), x)
dist.reduce_scatter_tensor(torch.empty(2), x)
warnings.warn("but this")""")


def test_old_names_of_collectives_are_not_spoken_of(sandbox: Sandbox) -> None:
    # Of all that a rank warns of, only what is no fault of its program is left out.
    with sandbox.answer(OLD_NAMES) as answer:
        answer.launch(call, torch.arange(4.0), ranks=2, timeout=SECONDS)
        assert "but this" in answer.printed
        assert "deprecated" not in answer.printed


# --- what cannot be forged

UNCOUNTED = case("""from course_lib.runtime.communication import call, costs, intercepted_group, matching
from course_lib.runtime.simulator import network_model
nothing = costs.CallTraffic(0, 0, 0)
costs.traffic_of = call.traffic_of = call.Operation._traffic = lambda *_: nothing
matching.CallMatcher.events = lambda self: []
network_model.Timing.message = network_model.Timing.collective = lambda *_: 0.0
call.payload_of = intercepted_group.payload_of = lambda op, *_: call.Payload(None, None, 0)
class Small(torch.Tensor):
    nbytes = 0
x = x.as_subclass(Small)
dist.all_reduce(x)
if me == 0: dist.send(x, 1)
else: dist.recv(x, 0)
return None""")
PLAIN = case("dist.all_reduce(x)\nif me == 0: dist.send(x, 1)\nelse: dist.recv(x, 0)\nreturn None")


def test_patching_the_library_changes_no_count_and_no_clock(sandbox: Sandbox) -> None:
    # What is sent is counted and timed where it arrives.
    forged, honest = observe(sandbox, UNCOUNTED), observe(sandbox, PLAIN)
    assert forged.traffic == honest.traffic
    assert [(e.op, e.start, e.end) for e in forged.events] == [(e.op, e.start, e.end) for e in honest.events]


MEET = case("""import socket
def attempt(do):
    try: return str(do())
    except OSError as error: return error.strerror
def listen():
    global server
    server = socket.socket(); server.bind(("127.0.0.1", 45678)); server.listen()
    hidden = socket.socket(socket.AF_UNIX); hidden.bind("\\0meet"); hidden.listen(); gc.disable()
    globals()["hidden"] = hidden
if me == 0:
    listen()
    for folder in ("/tmp", "/dev/shm"): open(folder + "/left", "w").write("secret")
    fifo = attempt(lambda: os.mkfifo("/tmp/fifo"))
dist.barrier()
seen = [attempt(lambda: open(folder + "/left").read()) for folder in ("/tmp", "/dev/shm")]
seen.append(attempt(lambda: socket.create_connection(("127.0.0.1", 45678), 1)))
seen.append(attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0meet")))
own = (os.getpid(), os.getppid())
seen.append([name for name in os.listdir("/proc") if name.isdigit() and int(name) not in own])
import fcntl
seen.append(attempt(lambda: fcntl.flock(open(torch.__file__), fcntl.LOCK_SH)))
dist.barrier()
return seen""")


def test_ranks_share_nothing(sandbox: Sandbox) -> None:
    # No file, no shared memory, no socket, no process of another rank, no lock on what both can read.
    missing, refused = "No such file or directory", "Connection refused"
    if not sandbox.has_inner_sandboxes:
        pytest.skip("Ordinary users cannot make namespaces here; allow it to keep ranks apart.")
    _, seen = observe(sandbox, MEET).results
    assert seen == [missing, missing, refused, refused, ["1"], "Operation not permitted"]


def forged(calls: str) -> str:
    """A case that slips calls of its own making into what its rank tells the grader."""
    return case(f"""(engine,) = [o for o in gc.get_objects() if type(o).__name__ == "_SocketEngine"]
engine._calls.extend([{calls}])
dist.barrier()
return 0""")


def post(
    op: str = "send",
    members: str = "(0, 1)",
    inputs: str = "[x]",
    outputs: str = "[]",
    peer: str = "other",
    reduction: str = "",
    strides: str = "None",
) -> str:
    """The source of a call that a rank could post."""
    return (
        f"{{'do': 'post', 'op': {op!r}, 'group': '0', 'members': {members}, 'inputs': {inputs}, "
        f"'outputs': {outputs}, 'peer': {peer}, 'tag': 0, 'reduction': {reduction!r}, "
        f"'strides': {strides}, 'shape_only': False, 'asynchronous': True, 'line': None}}"
    )


FORGERIES = {
    "computing backwards": ("{'do': 'compute', 'seconds': [-1.0]}", "a time that there is not"),
    "a phase to come": (
        "{'do': 'span', 'label': 'load', 'start': 0.0, 'end': 5.0}",
        "a time that there has not been",
    ),
    "memory of no kind": ("{'do': 'memory', 'kind': 'x', 'nbytes': 1}", "memory that there is not"),
    "less than no memory": (
        "{'do': 'memory', 'kind': 'inputs', 'nbytes': -1}",
        "memory that there is not",
    ),
    "an unknown call": ("{'do': 'forge'}", "there is no call"),
    "no call": ("5", "there is no call"),
    "an end in between": ("{'do': 'returned', 'value': 0, 'printed': ''}", "its last call, and no other"),
    "another's group": (post(members="(7,)"), "in a group of other ranks"),
    "ranks that there are not": (post(members="(0, 1, 99)"), "ranks that there are not"),
    "an unknown operation": (post(op="pickle"), "there is no call 'pickle'"),
    "an enormous tensor": (
        post(op="recv", inputs="[]", outputs="[{'dtype': 'float32', 'shape': (10**12,)}]"),
        "larger than a message may be",
    ),
    "two tensors at once": (post(inputs="[x, x.clone()]"), "not exactly one tensor"),
    "a formula in a report": (post(op="all_reduce", reduction="$x$"), "impossible group or reduction"),
    "strides that there are not": (post(op="all_reduce", strides="(-1,)"), "impossible strides"),
    "another's call": ("{'do': 'change', 'call': 7, 'inputs': []}", "a call that it has not made"),
    "another tensor": (
        post() + ",{'do': 'change', 'call': 0, 'inputs': [x.double()]}",
        "of another tensor",
    ),
}
FORGED_CASES = {what: forged(calls) for what, (calls, _) in FORGERIES.items()}


@pytest.mark.parametrize("what", FORGERIES)
def test_forged_call_fails_with_the_reason(sandbox: Sandbox, what: str) -> None:
    error = failure(sandbox, FORGED_CASES[what])
    assert error.kind == "Unreadable"
    assert FORGERIES[what][1] in error.report


JUNK = case("""for descriptor in range(3, 9):
    try: os.write(descriptor, b"\\0" * 7 + b"\\x04junk")
    except OSError: pass""")


def test_bytes_that_are_no_message_fail(sandbox: Sandbox) -> None:
    assert failure(sandbox, JUNK).kind == "Unreadable"
