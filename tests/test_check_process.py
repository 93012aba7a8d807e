"""`course check FILE`: one process imports PyTorch; its fork in the sandbox knows nothing of the grading."""

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from graders.isolation.backends import backend_here
from tests.classroom import command, environment

UNIT = "00_hello_ranks"
SECRET = "the-user-s-token-3141592"

pytestmark = pytest.mark.skipif(
    not backend_here().carries_namespaces, reason="there is no bubblewrap here: apt-get install bubblewrap"
)

LOOKS_ROUND = f"""
import hashlib, os, re, sys

def amdahl_speedup(*arguments):
    # Nothing here holds the whole secret, so that it is not found in what looks for it.
    for line in open("/proc/self/maps"):
        place, rights, *_ = line.split()
        first, last = (int(each, 16) for each in place.split("-"))
        try:
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(first)
                held = memory.read(last - first) if rights.startswith("rw") else b""
        except (OSError, ValueError, OverflowError):
            continue
        for found in re.finditer(b"the-user-s-", held):
            text = held[found.start() : found.start() + {len(SECRET)}]
            if hashlib.sha256(text).hexdigest() == "{hashlib.sha256(SECRET.encode()).hexdigest()}":
                raise ValueError("the secret is in memory")
    # What is seen has a limit, and the units have many drivers.
    graders = sorted(name for name in sys.modules if re.match("graders[.](?!units[.])", name))
    raise ValueError(f"{{graders}} {{sorted(os.environ)}} {{os.getuid()}} {{os.listdir('/proc')}} END")
"""


def check(file: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("check", str(file), "--unit", UNIT, "--json"),
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_fork_holds_no_grader_and_nothing_of_the_user(tmp_path: Path) -> None:
    # Invariant: neither modules that judge, nor variables, nor what the file's reader has read; and as always
    # no other process but the sandbox's own, and nobody's user where root grades.
    path = tmp_path / "mine.py"
    path.write_text(LOOKS_ROUND)
    done = check(path, SECRET=SECRET)
    seen = json.loads(done.stdout)["exercises"][0]["criteria"][0]["seen"]
    assert "END" in seen, seen + done.stderr
    assert "graders.guest.submission_process" in seen
    assert not [
        name
        for name in ("grading.rng", "grading.run", "grading.compare", "graders.host", "graders.commands")
        if name in seen
    ]
    assert "exercises" not in seen
    assert "SECRET" not in seen
    if os.geteuid() == 0:
        assert " 65534 [" in seen


def test_where_the_sandbox_cannot_be_entered_another_is_started(tmp_path: Path) -> None:
    # Invariant: the points are the same on a machine whose kernel lets nobody join what bubblewrap has built.
    path = tmp_path / "mine.py"
    path.write_text("def amdahl_speedup(*_):\n    return 1.0\n")
    program = (
        "import errno\n"
        "from graders.isolation import entering\n"
        "def refused(_):\n    raise PermissionError(errno.EPERM, 'setns')\n"
        "entering._join = refused\n"
        "from graders.check_process import main; main()"
    )
    order = {"file": str(path), "unit": UNIT, "as_json": True, "require_sandbox": False, "unsafe": False}
    done = subprocess.run(
        [*command()[:1], "-c", program],
        input=json.dumps([str(tmp_path), environment(), order]),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout)["max_points"] == 21, done.stderr


def test_nothing_runs_on_when_it_is_killed(tmp_path: Path) -> None:
    # Invariant: the death of the command is the death of all that it has started.
    path = tmp_path / "mine.py"
    path.write_text("import time\ndef amdahl_speedup(*_):\n    time.sleep(600)\n")
    running = subprocess.Popen(
        command("check", str(path), "--unit", UNIT, "--json"), env=environment(), stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 100
    while len(started := descendants(running.pid)) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(started) >= 4
    running.send_signal(signal.SIGKILL)
    running.wait()
    while any(is_there(pid) for pid in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(is_there(pid) for pid in started)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(each) for each in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found
