"""The sandbox: what a submission's code may do, and what it costs only itself."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graders import commands
from graders.grading.answer import AnswerFailed, FailureKind
from graders.grading.report import Report
from graders.host import fork_server_client
from graders.host.grade_submission import grade_submission
from graders.host.sandbox import DEFAULT_LIMITS, Sandbox
from graders.isolation import backends
from graders.isolation.backends import NO_INNER_SANDBOXES, UNSANDBOXED, backend_here
from graders.isolation.usage import Bounds
from graders.protocol.limits import Limits
from graders.submissions.cells import Cell
from graders.submissions.read import Submission
from graders.units.drivers import call
from tests import sample_unit
from tests.forks import counted_forks

IMPORTS = "import os, subprocess, sys, time\nimport torch\nimport torch.distributed as dist"
DOUBLE, TOTAL = sample_unit.SOLVED["double"], sample_unit.SOLVED["total"]
SHORT = Limits(cell=1, call=1, grace=1)


@pytest.fixture(autouse=True)
def sample() -> Iterator[None]:
    with sample_unit.registered():
        yield


def submission(*sources: str) -> Submission:
    cells = [Cell(f"<cell {number}>", source) for number, source in enumerate([IMPORTS, *sources])]
    return Submission("90_sample.ipynb", tuple(cells), main=True)


_cases: list[Cell] = []


def case(body: str) -> str:
    """Put a function of x with this body into the submission that the cases share; returns its name."""
    name = f"case_{len(_cases)}"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    _cases.append(Cell(f"<cell of {name}>", f"def {name}(x):\n{lines}"))
    return name


@pytest.fixture(scope="module")
def cases() -> Iterator[Sandbox]:
    """One worker for all cases: each has a process of its own in any case."""
    with all_cases(DEFAULT_LIMITS) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def hanging() -> Iterator[Sandbox]:
    """The same for those that hang, for which nobody waits long."""
    with all_cases(SHORT) as sandbox:
        yield sandbox


def all_cases(limits: Limits) -> Sandbox:
    imports = Cell("<imports>", IMPORTS)
    return Sandbox(Submission("cases.ipynb", (imports, *_cases), main=True), limits)


def called(cases: Sandbox, name: str, argument: object = 3) -> object:
    """What one call of a case returns."""
    with cases.answer(name) as answer:
        return answer.call(call, argument)


def failure(sandbox: Sandbox, name: str) -> AnswerFailed:
    """How one call of an answer fails."""
    with sandbox.answer(name) as answer, pytest.raises(AnswerFailed) as caught:
        answer.call(call, 1)
    return caught.value


def graded(*sources: str, limits: Limits = DEFAULT_LIMITS) -> Report:
    report = grade_submission(submission(*sources), sample_unit.UNIT, limits)
    assert not any(result.mistake for result in report.exercises), report.exercises
    return report


def points(report: Report) -> list[float]:
    return [result.points for result in report.exercises]


def processes_with(mark_: str) -> list[str]:
    """Command lines of this machine's processes that contain a text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in found if mark_ in line]


# --- what works


def test_solved_submission_earns_all_points() -> None:
    # Answers are called and launched there as they are in a kernel.
    assert points(graded(DOUBLE, TOTAL)) == [3, 2]


def test_run_comes_back_with_the_students_lines() -> None:
    # Results are tensors, every call is there, and each line is found in the submission.
    with Sandbox(submission(TOTAL)) as sandbox, sandbox.answer("total") as answer:
        observed = answer.launch(call, torch.ones(2), ranks=2)
        assert answer.source.startswith("def total(x):")
    assert [result.tolist() for result in observed.results] == [[2, 2], [2, 2]]
    assert observed.calls(1) == ["all_reduce"]
    assert str(observed.communication(0)[0].line) == "<cell 1>, line 2: dist.all_reduce(x)"


@pytest.mark.parametrize(
    ("imports", "there"), [("", False), ("from torch.distributed import _functional_collectives\n", True)]
)
def test_what_functional_collectives_import_is_there_before_they_are_timed(imports: str, there: bool) -> None:
    # Their first call would import torch's compiler, on each rank, within the seconds that a launch has.
    seen = f"{imports}def seen(x):\n    return 'torch._dynamo' in sys.modules"
    with Sandbox(submission(seen)) as sandbox, sandbox.answer("seen") as answer:
        assert answer.launch(call, 0, ranks=2).results == [there, there]


COPIES = case("return x.mul_(2)")


def test_answer_gets_copies(cases: Sandbox) -> None:
    # What an answer does to its input does not reach the grader's own tensor.
    x = torch.ones(3)
    seen = called(cases, COPIES, x)
    assert isinstance(seen, torch.Tensor)
    assert seen.tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


def test_magics_do_no_harm() -> None:
    # Lines and cells that only IPython understands are no reason to lose points.
    magic = "%matplotlib inline\n!pip install torch\nfiles = !ls\n%%time_is_no_magic_in_line_four = 1"
    assert points(graded(magic.rsplit("\n", 1)[0], "%%time\n" + DOUBLE, "%%bash\nexit 3", TOTAL)) == [3, 2]


def test_checks_in_cells_do_nothing() -> None:
    # A student's own check cells neither grade nor record anything while grades are given.
    cell = "from graders import check, hint, progress, reset\ncheck(3); hint(None); progress()"
    report = graded(cell, DOUBLE, TOTAL)
    assert points(report) == [3, 2]
    assert not report.notes


def test_raising_cell_does_not_stop_the_others() -> None:
    # The cells after it run, and the report names it.
    report = graded("1 / 0", DOUBLE, TOTAL)
    assert points(report) == [3, 2]
    assert "ZeroDivisionError" in report.notes[0]
    assert "<cell 1>, line 1: 1 / 0" in report.notes[0]


# --- answers that are not there

ABSENT = {
    "stub": ("def stub(x):\n    raise NotImplementedError", FailureKind.NOT_ATTEMPTED, "is still there"),
    "missing": ("", FailureKind.NOT_ATTEMPTED, "90_sample.ipynb does not define missing."),
    "double_it": (
        "def doubel_it(x): return 2 * x",
        FailureKind.NOT_ATTEMPTED,
        "does not define double_it. Is doubel_it meant to be it?",
    ),
    "stub_in_class": (
        "class stub_in_class:\n    raise NotImplementedError",
        FailureKind.NOT_ATTEMPTED,
        "is still there",
    ),
    "no_syntax": ("def no_syntax(x:\n    return x", "SyntaxError", "def no_syntax(x:"),
    "deleted": ("def deleted(x): return x\ndel deleted", "NameError", "afterwards there was no deleted"),
    "too_late": ("1 / 0\ndef too_late(x): return x", "ZeroDivisionError", "The cell that defines too_late"),
    "nothing": ("nothing = None", "TypeError", "not callable"),
}


@pytest.fixture(scope="module")
def incomplete() -> Iterator[Sandbox]:
    with Sandbox(submission(*(source for source, _, _ in ABSENT.values()))) as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", ABSENT)
def test_absent_answer_is_explained(incomplete: Sandbox, name: str) -> None:
    # Not attempted is not failed, and a cell that breaks says so where its answer is missed.
    _, kind, said = ABSENT[name]
    error = failure(incomplete, name)
    assert (error.error or error.kind) == kind
    assert said in error.report


# --- answers that end badly


BAD_ENDS = {
    "raise ValueError('no')": ("ValueError", "line 2: raise ValueError('no')"),
    "sys.exit(0)": ("SystemExit", "SystemExit: 0"),
    "raise KeyboardInterrupt": ("Ended", "exit status 0"),
    "return x + globals()[sys._getframe().f_code.co_name](x)": ("RecursionError", "more lines"),
    "return x + torch.zeros(10**13)": ("RuntimeError", "memory"),
    "return input()": ("EOFError", "EOF"),
    "raise ValueError('x' * 10**7)": ("ValueError", "the rest is not kept"),
    "return object()": ("NotPlainData", "the result is a object"),
    "while True: pass": ("TimedOut", "line 2: while True: pass"),
    "time.sleep(60)": ("TimedOut", "still running after 1 s"),
    "while True:\n    try: time.sleep(9)\n    except BaseException: pass": ("TimedOut", "was stopped"),
    "os._exit(7)": ("Ended", "exit status 7"),
    "os._exit(113)": ("Unreadable", "no reply"),
    "os.kill(os.getpid(), 11)": ("Ended", "signal SIGSEGV"),
    "os.killpg(0, 9)": ("Ended", "signal SIGKILL"),
    "os.kill(os.getpid(), 19)": ("TimedOut", "was stopped"),
}
BAD_CASES = {body: case(body) for body in BAD_ENDS}


@pytest.mark.parametrize("body", BAD_ENDS)
def test_bad_end_is_told(cases: Sandbox, hanging: Sandbox, body: str) -> None:
    # However an answer ends, the student reads how, and where if that can be known.
    kind, said = BAD_ENDS[body]
    error = failure(hanging if kind == "TimedOut" else cases, BAD_CASES[body])
    assert (error.error or error.kind) == kind
    assert said in error.report


def test_computing_without_end_costs_its_processor_time() -> None:
    # However busy the machine is, and long before what waits is given up.
    endless = Submission(
        "cases.ipynb", (Cell("<endless>", "def endless(x):\n    while True: pass"),), main=True
    )
    with Sandbox(endless, Limits(call=200)) as sandbox:
        error = failure(sandbox, "endless")
    assert error.kind == "TimedOut"
    assert error.report.startswith("It was still running after 6 s of computing, here:")


def test_hang_costs_only_its_exercise() -> None:
    # A loop that swallows every exception is stopped by force; the other exercise keeps its points.
    stubborn = (
        "def double(x):\n    while True:\n        try: time.sleep(9)\n        except BaseException: pass"
    )
    began = time.monotonic()
    report = graded(stubborn, TOTAL, limits=Limits(call=1, grace=1))
    assert points(report) == [0, 2]
    assert "still running after 1 s" in report.exercises[0].criteria[0].seen
    assert time.monotonic() - began < 55


def test_hanging_cell_costs_its_time_once() -> None:
    # A cell that never ends is left out when the cells run again for the next exercise.
    hang = "while True:\n    try: time.sleep(9)\n    except BaseException: pass"
    began = time.monotonic()
    report = graded(hang, "time.sleep(60)", "os._exit(3)", DOUBLE, TOTAL, limits=Limits(cell=1, grace=1))
    assert points(report) == [3, 2]
    assert [note.split(" failed")[0] for note in report.notes] == ["The cell 1", "The cell 2", "The cell 3"]
    assert time.monotonic() - began < 55


FRAGILE = case("return 2 * x if x else os._exit(1)")


def test_answer_is_started_anew_after_it_was_lost(cases: Sandbox) -> None:
    # A grader that goes on after a crash asks a fresh process.
    with cases.answer(FRAGILE) as answer:
        with pytest.raises(AnswerFailed):
            answer.call(call, 0)
        assert answer.call(call, 4) == 8


# --- answers that print

FLOOD = case("for _ in range(10**4): print('x' * 10**4)\nreturn 2 * x")


def test_flood_is_cut(cases: Sandbox) -> None:
    # Endless output neither fills memory nor reaches the report.
    with cases.answer(FLOOD) as answer:
        assert answer.call(call, 3) == 6
        assert 10_000 < len(answer.printed) < 30_000


FORGED = json.dumps({"value": 6, "printed": ""})
FORGERY = case(f"""print({FORGED!r}, flush=True)
for descriptor in (0, 1, 2):
    try: os.write(descriptor, b"\\0" * 7 + b"\\x20" + {FORGED!r}.encode())
    except OSError: pass
os.system("echo 6; echo 6 >&2")
return 5""")


def test_printing_cannot_reach_the_protocol(cases: Sandbox) -> None:
    # JSON, frames and bytes on every standard descriptor are output, not replies.
    assert called(cases, FORGERY) == 5


def on_every_descriptor(data: str) -> str:
    """A function that writes bytes to whatever it finds open, its own socket included."""
    return case(f"""for descriptor in range(3, 64):
    try: os.write(descriptor, {data})
    except OSError: pass
return 2 * x""")


JUNK = on_every_descriptor("b'\\0' * 7 + b'\\x04' + b'junk'")
ENORMOUS = on_every_descriptor("b'\\x7f' * 8")


def test_garbage_on_the_socket_itself_is_the_answers_failure(cases: Sandbox) -> None:
    # Code that finds the process's own socket and writes to it fails itself.
    assert failure(cases, JUNK).kind == "Unreadable"


def test_enormous_reply_is_refused(cases: Sandbox) -> None:
    # A reply that announces more bytes than a message may have is not read.
    assert failure(cases, ENORMOUS).kind == "Ended"


# --- what is out of reach

SURROUNDINGS = case("return [sorted(os.environ), os.getcwd(), sys.path, sorted(sys.modules)]")


def test_nothing_of_ours_is_in_its_surroundings(cases: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither variables nor folders of the grading process, and neither judges nor seeds in its memory.
    seen = called(cases, SURROUNDINGS)
    assert isinstance(seen, list)
    variables, folder, path, modules = seen
    assert set(variables).isdisjoint({"PYTEST_CURRENT_TEST", "PYTHONPATH", "COURSE_HOME"})
    assert folder != os.getcwd()
    assert folder not in path
    assert "" not in path
    assert "graders.guest.execute" in modules
    assert not [
        m
        for m in modules
        if m.startswith(("graders.grading.rng", "graders.grading.run", "graders.grading.compare"))
    ]


def test_module_beside_it_does_not_shadow_torch() -> None:
    # A file torch.py that a submission leaves behind is nobody's torch.
    shadow = "open('torch.py', 'w').write('raise SystemExit')"
    source = "def double(x):\n    import torch\n    return 2 * x"
    assert points(graded(shadow, source, TOTAL)) == [3, 2]


PEEK = case("""import socket
try: socket.create_connection(("192.0.2.1", 80), timeout=1); network = "reached"
except OSError as error: network = error.strerror
return [[path for path in x if os.path.exists(path)], network]""")


@pytest.mark.skipif(not backend_here().stands, reason="bubblewrap is not here, or not allowed")
def test_sandbox_hides_course_and_network(cases: Sandbox, tmp_path: Path) -> None:
    # Behind the sandbox there is no solution, no test, no gradebook, nobody's file and no network.
    root = Path(__file__).parents[1]
    gradebook = tmp_path / "gradebook.db"
    gradebook.touch()
    hidden = [root / "solutions", root / "tests", root / "pyproject.toml", gradebook, Path("/etc/passwd")]
    assert all(path.exists() for path in hidden)
    assert called(cases, PEEK, [str(path) for path in hidden]) == [[], "Network is unreachable"]


TOKEN = f"token {time.time_ns()}"
ORPHAN = case(f"""command = [sys.executable, "-c", "import time; time.sleep(600) # {TOKEN}"]
subprocess.Popen(command, start_new_session=True)
time.sleep(0.2)
return 2 * x""")


def test_no_process_survives(cases: Sandbox) -> None:
    # A child in a session of its own, started by an answer, ends with the exercise.
    with cases.answer(ORPHAN) as answer:
        assert answer.call(call, 3) == 6
        assert processes_with(TOKEN), "the child runs while its exercise does"
    assert not processes_with(TOKEN), "and not a moment longer"


def test_without_a_sandbox_grades_are_the_same(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # Where bubblewrap is not to be had, a submission runs all the same, and nothing of it survives.
    monkeypatch.setattr(backends, "BACKENDS", ())
    backend_here.cache_clear()
    request.addfinalizer(backend_here.cache_clear)
    token = f"unsandboxed {time.time_ns()}"
    double = f"""def double(x):
    command = [sys.executable, "-c", "import time; time.sleep(600) # {token}"]
    subprocess.Popen(command, start_new_session=True)
    return 2 * x"""
    report = graded(double, TOTAL)
    assert points(report) == [3, 2]
    assert report.notes == (UNSANDBOXED,)
    assert not processes_with(token)


def test_without_a_sandbox_nobody_else_s_process_is_ended(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # Not even by an answer that ends as if all had been asked.
    monkeypatch.setattr(backends, "BACKENDS", ())
    backend_here.cache_clear()
    request.addfinalizer(backend_here.cache_clear)
    other = subprocess.Popen(["sleep", "600"])
    try:
        assert points(graded("def double(x):\n    os._exit(113)", TOTAL)) == [0, 2]
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_sandbox_that_does_not_work_gives_no_grades(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # No points because of a broken installation would be an injustice: it is an error, which says why.
    command = [sys.executable, "-c", "raise SystemExit('torch is not installed')"]
    monkeypatch.setattr(fork_server_client, "_command", lambda _: command)
    monkeypatch.setattr(fork_server_client, "_shared", None)
    path = tmp_path / "90_sample.py"
    path.write_text(DOUBLE)
    assert commands.check(path, as_json=True) == commands.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip().endswith("nothing can be graded here: torch is not installed")


def test_a_long_answer_of_the_fork_server_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # Invariant: what became of a thousand ranks is one answer, however many bytes it takes.
    program = """
import json, socket
control = socket.socket(fileno=0)
control.sendall(json.dumps({"no_namespaces": ""}).encode())
while control.recv(100):
    control.sendall(json.dumps({"ended": ["x" * 80] * 1024}).encode())
"""
    monkeypatch.setattr(fork_server_client, "_command", lambda _: [sys.executable, "-c", program])
    server = fork_server_client.start()
    assert [len(server.order({"do": "end"})["ended"]) for _ in range(2)] == [1024, 1024]
    server.close()


def test_warm_process_is_out_of_reach() -> None:
    # An answer that signals all it can see, its keeper too, loses its own points only.
    signals = "os.kill(1, 9); os.kill(os.getppid(), 9); os.kill(-1, 19); time.sleep(9)"
    source = f"def double(x):\n    {signals}"
    assert points(grade_submission(submission(source, TOTAL), sample_unit.UNIT, SHORT)) == [0, 2]


def test_worker_that_was_killed_is_replaced() -> None:
    # Should it be lost all the same, the next exercise gets another one.
    with Sandbox(submission(DOUBLE)) as sandbox:
        for _ in range(2):
            with sandbox.answer("double") as answer:
                assert answer.call(call, 2) == 4
            worker = sandbox._live_server().process.popen
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


# --- one process, many exercises


@pytest.fixture
def inner_sandbox() -> None:
    """A machine on which every process of a submission can isolate itself."""
    why = fork_server_client.acquire().no_namespaces
    if why:
        pytest.skip(f"Install bubblewrap, and allow ordinary users to make namespaces: {why}.")


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[Bounds]:
    """An entry for every process that is started for a submission; those that are only ranks have others."""
    return counted_forks(monkeypatch)


@pytest.mark.usefixtures("inner_sandbox")
def test_cells_run_once_for_all_exercises(forks: list[Bounds]) -> None:
    # But for further ranks.
    assert points(graded(DOUBLE, TOTAL)) == [3, 2]
    assert forks.count(DEFAULT_LIMITS.bounds) == 1


HARM = {
    "its global variables": "global total; total = None",
    "a module": "dist.all_reduce = None",
    "torch's state": "torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False)",
    "a thread": "import threading; threading.Thread(target=time.sleep, args=[60]).start()",
    "a process": "subprocess.Popen(['sleep', '60'], start_new_session=True)",
    "a file": "open(f'left {time.time_ns()}', 'w'); open('/dev/shm/left', 'w')",
    "a folder": "os.makedirs('/tmp/left/there', exist_ok=True)",
}


@pytest.mark.usefixtures("inner_sandbox")
@pytest.mark.parametrize("what", HARM)
def test_an_answer_leaves_nothing_to_another(forks: list[Bounds], what: str) -> None:
    # Variables, modules, threads, processes and files end with the exercise.
    double = f"def double(x):\n    {HARM[what]}\n    return 2 * x"
    total = f"""def total(x):
    assert not os.path.exists("/tmp/left") and not os.path.exists("/dev/shm/left")
    assert not [name for name in os.listdir() if name.startswith("left")]
    assert torch.get_default_dtype() is torch.float32 and torch.is_grad_enabled()
{TOTAL.partition(chr(10))[2]}"""
    assert points(graded(double, total)) == [3, 2]
    assert forks.count(DEFAULT_LIMITS.bounds) == 1


LEFT_BY_CELLS = {
    "a thread": "import threading\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()",
    "a process": "other = subprocess.Popen(['sleep', '60'])",
}


@pytest.mark.usefixtures("inner_sandbox")
@pytest.mark.parametrize("what", LEFT_BY_CELLS)
def test_what_cells_have_started_is_there_for_each_exercise(forks: list[Bounds], what: str) -> None:
    # A fork would be without the thread, and forks would share the process: the cells run again.
    there = "threading.active_count() == 2" if what == "a thread" else "other.poll() is None"
    double, total = (source.replace(":\n", f":\n    assert {there}\n", 1) for source in (DOUBLE, TOTAL))
    assert points(graded(LEFT_BY_CELLS[what], double, total)) == [3, 2]
    assert forks.count(DEFAULT_LIMITS.bounds) == 2


SWITCHED_ON_BY_CELLS = (
    "import warnings",
    "warnings.simplefilter('error')",
    "torch.autograd.set_detect_anomaly(True)",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_grad_enabled(False)",
    "torch.set_default_device('meta')",
)


def test_what_cells_have_switched_on_is_off_for_each_exercise() -> None:
    # Called or launched, an answer finds PyTorch as a new process has it.
    usual = (
        "torch.zeros(1).dtype == torch.float32 and torch.zeros(1).device.type == 'cpu'"
        " and torch.is_grad_enabled() and not torch.is_anomaly_enabled()"
    )
    double, total = (source.replace(":\n", f":\n    assert {usual}\n", 1) for source in (DOUBLE, TOTAL))
    assert points(graded("\n".join(SWITCHED_ON_BY_CELLS), double, total)) == [3, 2]


# --- one warm process, many submissions


def test_report_says_where_only_the_outer_sandbox_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without inner sandboxes grades are the same, from a process of the submission's own; the report says so.
    backend = replace(backend_here(), carries_namespaces=False)
    monkeypatch.setattr(fork_server_client, "backend_here", lambda: backend)
    report = graded(DOUBLE, TOTAL)
    assert points(report) == [3, 2]
    assert report.notes == ((NO_INNER_SANDBOXES,) if backend.stands else (UNSANDBOXED,))


@pytest.mark.usefixtures("inner_sandbox")
def test_submissions_share_the_warm_process_and_nothing_else() -> None:
    # Files, shared memory and processes of one are not there for another, even at the same time.
    leave = """def double(x):
    open("/tmp/left", "w").write("here")
    open("/dev/shm/left", "w").write("here")
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    return 2 * x"""
    find = """def double(x):
    seen = {int(name) for name in os.listdir('/proc') if name.isdigit()} - {os.getpid(), os.getppid()}
    return [os.listdir('/tmp'), os.listdir('/dev/shm'), sorted(seen)]"""
    with Sandbox(submission(leave)) as first, first.answer("double") as answer:
        assert answer.call(call, 2) == 4
        warm = first._live_server()
        with Sandbox(submission(find)) as second, second.answer("double") as other:
            files, memory, processes = other.call(call, 2)
            assert second._live_server() is warm
    assert "left" not in files
    assert memory == []
    assert processes == [1]


BOUNDS = Bounds(memory=2**29, processes=24, cpu_seconds=2, files=2**20, names=100)
GREED = {
    "memory": (
        "import mmap\nkept = [mmap.mmap(-1, 2**27) for _ in range(4)]\n"
        "for each in kept:\n    if not os.fork(): each.write(b'x' * 2**27); time.sleep(9)\ntime.sleep(9)",
        "more than 512 MiB of memory",
    ),
    "hidden memory": (
        # PR_SET_DUMPABLE: the kernel no longer tells others of the same user how much is shared.
        "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nkept = b'x' * 2**30\ntime.sleep(9)",
        "more than 512 MiB of memory",
    ),
    "processes": (
        "for _ in range(30):\n    if not os.fork(): time.sleep(9)\ntime.sleep(9)",
        "more than 24 processes",
    ),
    "processor": (
        "for _ in range(2):\n    if not os.fork():\n        while True: pass\ntime.sleep(99)",
        "more than 2 s of processor time",
    ),
    "files": ("open('/dev/shm/x', 'wb').write(b'x' * 2**21)", "No space left on device"),
    "names": ("for number in range(200): open(f'/tmp/{number}', 'w')", "No space left on device"),
}


@pytest.mark.usefixtures("inner_sandbox")
@pytest.mark.parametrize("kind", GREED)
def test_all_its_processes_together_have_bounds(kind: str) -> None:
    # Many small processes take no more than one large one may, and the student reads what was too much.
    body, said = GREED[kind]
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    with Sandbox(submission(f"def greedy(x):\n{lines}"), Limits(call=99, grace=1, bounds=BOUNDS)) as sandbox:
        assert said in failure(sandbox, "greedy").report
