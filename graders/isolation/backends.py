"""The kinds of sandbox there are round the code of a submission, and what holds where there is none.

Behind a sandbox there is no network, no other process, no home, no notebook, no gradebook; the system, this
Python and the course's library can be read. Whoever grades the work of others needs one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course_lib.scratch import scratch_folder
from graders.isolation.bubblewrap import sandboxed, visible

_PROBE_SECONDS = 120.0
"""A busy machine is no reason to say that it has no sandbox."""


class NoSandbox(RuntimeError):
    """No sandbox can be built on this machine; the message says what to do."""

    def __init__(self) -> None:
        super().__init__(
            "There is no sandbox here to keep submissions in: neither bubblewrap nor Apptainer works, so "
            "their code could read and change whatever you can, the gradebook too. Install bubblewrap (on "
            "Debian or Ubuntu: apt-get install bubblewrap), or grade on a machine that has it. If you trust "
            "all who handed in, grade with --unsafe (nbgrader: c.GradeInSandbox.unsafe = True in its "
            "configuration). Every report will say so."
        )


UNSANDBOXED = "Graded without a sandbox: the code could read and change whatever the one who graded it can."
"""What every report says then."""

NO_INNER_SANDBOXES = (
    "Graded in one sandbox for the whole submission, since none can be built here round each of its "
    "processes: its simulated ranks could have reached each other."
)
"""What every report says where the outer sandbox stands alone (see docs/threat-model.md)."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of sandbox; its name stands in reports.

    around: makes of a command, and an empty folder that lives as long as its process, the command behind the
    sandbox. temporary: the folder in which that command can write, or None for the empty folder itself.
    carries_namespaces: nothing else behind it can be written, so that processes which put a file system of
    their own in its place share nothing (see `graders.isolation.namespaces`).
    """

    name: str
    around: Callable[[Sequence[str], Path], list[str]]
    temporary: str | None = "/tmp"
    carries_namespaces: bool = False

    @property
    def stands(self) -> bool:
        """Whether it keeps anything in."""
        return self.temporary is not None


def backend_for_grading(unsafe: bool) -> Backend:
    """The sandbox in which the work of others is run. Raises NoSandbox if there is none, unless `unsafe`."""
    sandbox = backend_here()
    if not (sandbox.stands or unsafe):
        raise NoSandbox
    return sandbox


@cache
def backend_here() -> Backend:
    """The first of `BACKENDS` that works here, or `NO_ISOLATION`: containers often forbid all of them."""
    return next(filter(works, BACKENDS), NO_ISOLATION)


_PROBE = """
import os, sys
outside, own, *namespaces = sys.argv[1:]
assert not os.path.exists(outside), "a file outside can be seen"
for name, theirs in zip(("pid", "net", "ipc", "mnt"), namespaces):
    assert os.readlink(f"/proc/self/ns/{name}") != theirs, f"the {name} namespace is the same"
open("/tmp/probe", "w").close()
try:
    open(own, "a")
except OSError:
    sys.exit()
sys.exit("a file of Python's can be written")
"""
"""What must hold in a sandbox, given a file outside, a file of Python's, and the namespaces outside."""


def works(sandbox: Backend) -> bool:
    """Whether Python runs in this sandbox, and is kept in."""
    with scratch_folder() as folder:
        outside, scratch = folder / "outside", folder / "scratch"
        outside.touch()
        scratch.mkdir()
        # -S: what is installed need not be looked for.
        probe = [sys.executable, "-I", "-S", "-c", _PROBE, str(outside), sys.executable, *_namespaces()]
        command = sandbox.around(probe, scratch)
        try:
            done = subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS, cwd="/", check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
    return done.returncode == 0


def _namespaces() -> list[str]:
    """This process's namespaces, in the order of the probe; none where the system has none."""
    places = (f"/proc/self/ns/{name}" for name in ("pid", "net", "ipc", "mnt"))
    return [os.readlink(place) for place in places if os.path.exists(place)]


def sandbox_environment(temporary: str) -> dict[str, str]:
    """What code in a sandbox sees of the environment: nothing of ours but where programs are.

    temporary: its folder for temporary files.
    """
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": temporary,
        "TMPDIR": temporary,
        "USER": "student",
        "LOGNAME": "student",
        "MPLBACKEND": "agg",
        # Forked processes must not find half a thread pool.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


# --- The kinds


def bubblewrap(command: Sequence[str], _: Path) -> list[str]:
    """The command behind `graders.isolation.bubblewrap`."""
    return sandboxed(command)


def apptainer(command: Sequence[str], scratch: Path) -> list[str]:
    """The command behind Apptainer (or Singularity), for clusters that have no bubblewrap.

    It needs no image: `scratch` becomes the container's root, which is empty but for what is shown in it. Its
    /tmp lies in memory, within the bounds of the site's `sessiondir max size`.
    """
    program = shutil.which("apptainer") or shutil.which("singularity") or "apptainer"
    shown = [path for path in dict.fromkeys(visible()) if os.path.exists(path)]
    _make_mount_points(scratch, shown)
    options = ["--userns", "--pid", "--ipc", "--uts", "--contain", "--no-home", "--no-privs"]
    options += ["--net", "--network", "none", "--pwd", "/tmp"]
    for path in shown:
        options += ["--bind", f"{path}:{path}:ro"]
    # Apptainer gives HOME a value of its own, the home that is not shown.
    return [program, "--silent", "exec", *options, str(scratch), "/usr/bin/env", "HOME=/tmp", *command]


def _make_mount_points(root: Path, shown: Sequence[str]) -> None:
    """What something is mounted on must be there: not every Apptainer can make it."""
    for path in ("/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/etc"):
        (root / path[1:]).mkdir(parents=True, exist_ok=True)
    for path in shown:
        place = root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(path):
            place.mkdir(exist_ok=True)
        else:
            place.touch()


def unsandboxed(command: Sequence[str], _: Path) -> list[str]:
    """The command as it is."""
    return list(command)


BACKENDS = (Backend("bubblewrap", bubblewrap, carries_namespaces=True), Backend("apptainer", apptainer))
"""In the order in which they are tried."""

NO_ISOLATION = Backend("none", unsandboxed, temporary=None)
