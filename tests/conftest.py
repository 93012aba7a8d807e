"""What holds for every test: random draws can be repeated, a run leaves nothing behind, a skip says why.

A run by several workers (`make test`) has a temporary folder of its own. When the workers have ended, what is
still there under one of this project's names fails the run, as does a process that it started.
"""

import gc
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from xdist.workermanage import NodeManager

from course_lib.home import VARIABLE as HOME_VARIABLE

OWN_NAMES = ("course-", "kernel-", "vc-")
"""How the folders that this project makes in the temporary folder begin."""
ENDING_SECONDS = 30.0
"""What ends with a worker may take so long to end on a busy machine."""

REASONS = re.compile("install|allow|root|GPU|file system|pins no threads", re.IGNORECASE)
"""A test that is skipped for want of something says what to install or to allow, or what it is not about."""

_RUN = "COURSE_TEST_RUN"
"""The variable by which every process of a run is known: the run's temporary folder."""
_made: list[str] = []
"""That folder, in the process that has made it."""
_left: list[str] = []


LONGEST_FIRST = (
    "slurm",
    "attacks",
    "class",
    "slurm-class",
    "test_browser",
    "horovod",
    "horovodrun",
    "sandboxes",
    "hand-ins",
    "batch scripts",
    "beside",
    "test_new_unit",
    "test_workbook",
    "nbgrader",
    "instructor",
    "check",
    "elastic",
    "test_architecture",
)
"""Groups and modules with which the workers begin, so that none is still at it when all others are done."""

# Workers share the cores already: threads of one would only wait for those of another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="repeat the random draws of the run that printed this number")


def pytest_configure(config: pytest.Config) -> None:
    # A shell script's job in the background, and what it starts, would not hear of Control-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_worker(config):
        return
    seed = config.getoption("--seed")
    os.environ["COURSE_TEST_SEED"] = str(random.randrange(10**6) if seed is None else seed)
    if config.getoption("numprocesses", None):
        # pytest's own folders stay where its user looks for them.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        folder = tempfile.mkdtemp(prefix="ct-")
        Path(folder).chmod(0o755)
        os.environ["TMPDIR"] = os.environ[_RUN] = tempfile.tempdir = folder
        # What the user of this machine has solved is neither counted nor added to.
        os.environ[HOME_VARIABLE] = str(Path(folder) / "home")
        _made.append(folder)
        # Else xdist begins with the groups of most tests, however long they take.
        config.option.loadscopereorder = False
        # xdist kills a worker that takes ten seconds to end, as it may on a busy machine, and what it has not
        # yet removed would be left behind.
        NodeManager.EXIT_TIMEOUT = 120


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, then what has a worker of its own, then the rest, as it is collected."""
    rank = {name: number for number, name in enumerate(LONGEST_FIRST)}

    def order(item: pytest.Item) -> int:
        mark = item.get_closest_marker("xdist_group")
        names = [str(mark.args[0])] if mark else []
        places = [rank[name] for name in (*names, item.path.stem) if name in rank]
        return min(places, default=len(rank) + (mark is None))

    items.sort(key=order)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU that torch can use")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Once xdist has ended its workers."""
    # A test may run tests: what is inherited belongs to the run outside, which goes on.
    if not _made:
        return
    folder = Path(_made[0])
    _left.extend(_wait_for_the_end(folder))
    shutil.rmtree(folder, ignore_errors=True)
    if _left and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    # pytest collects garbage five times now, and Python once more: millions of objects, that are about to go.
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"random draws: --seed={os.environ['COURSE_TEST_SEED']}")
    for name in _left:
        terminalreporter.write_line(f"LEFT BEHIND: {name}", red=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip that nobody can do anything about is a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if not REASONS.search(reason):
            report.outcome, report.longrepr = "failed", f"{reason!r} does not say what to install or to allow"
    return report


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random draws of this test alone, the same again with the run's --seed."""
    return random.Random(f"{os.environ['COURSE_TEST_SEED']} {request.node.nodeid}")


@pytest.fixture(scope="module")
def module_rng(request: pytest.FixtureRequest) -> random.Random:
    """The same for what the tests of a module share."""
    return random.Random(f"{os.environ['COURSE_TEST_SEED']} {request.node.nodeid}")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _wait_for_the_end(folder: Path) -> list[str]:
    """What is left of a run after the time that it may take to end."""
    deadline = time.monotonic() + ENDING_SECONDS
    while (left := [*_folders(folder), *_processes(folder)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _folders(folder: Path) -> Iterator[str]:
    yield from (str(path) for path in sorted(folder.iterdir()) if path.name.startswith(OWN_NAMES))


def _processes(folder: Path) -> Iterator[str]:
    """Processes that were started in this run, by number and command."""
    mark = f"{_RUN}={folder}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.name != str(os.getpid()) and mark in (path / "environ").read_bytes().split(b"\0"):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield f"process {path.name}: {command}"
        except OSError:
            continue
