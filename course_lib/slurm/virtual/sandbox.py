"""A sandbox round a virtual cluster's daemons and commands, and so round every job: for scripts of others.

In it there is the system, this Python and the cluster's own folder, all of it read-only, no network but
the cluster's, no home, no notebook, no environment of whoever started it. What is written lies in memory, is
bounded, and ends with the cluster. Nothing there has a privilege: not over the kernel's settings, which
bubblewrap's /proc would let root's processes change, and not over limits, which do not hold for root. So
whoever is root becomes a user that nobody else is.

Slurm's controller is in it too: a job may name programs that the controller runs (`strigger`, mail).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from course_lib.library_folders import library_folders

_FIRST_USER = 1_000_000_000
"""Users from here on are nobody's."""

ROOM = 64 * 2**20
"""Bytes that can be written to each place in the sandbox, and to a single file."""
_PROCESSES = 1024
"""Of all daemons and jobs, threads included; Slurm's own are about a hundred."""
_ADDRESSES = 8 * 2**30
"""Of a process."""

_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)
_HARDWARE = ("/sys/devices/system", "/sys/fs/cgroup")
"""slurmd looks here for cores and control groups; it changes nothing."""

USER = "course"
"""What the user is called in the sandbox."""


def sandbox_is_possible() -> bool:
    """Whether bubblewrap is here and works; containers often forbid it."""
    if shutil.which("bwrap") is None:
        return False
    probe = [*_built(user_for_jobs()), "--ro-bind", "/", "/", *_become(user_for_jobs()), "true"]
    return subprocess.run(probe, capture_output=True, timeout=10, check=False).returncode == 0


def user_for_jobs() -> int:
    """The user who daemons and jobs are: this one, or for root a new one."""
    return os.getuid() or _FIRST_USER + os.getpid()


def user_files(user: int, directory: Path) -> None:
    """Write the files that give the user a name in the sandbox."""
    (directory / "passwd").write_text(f"{USER}:x:{user}:{user}::/tmp:/bin/bash\n")
    (directory / "group").write_text(f"{USER}:x:{user}:\n")


def in_sandbox(directory: Path, words: Sequence[object]) -> list[str]:
    """A command in the sandbox. `directory` is the cluster's; its folder `shared` can be written to."""
    user = int((directory / "passwd").read_text().split(":")[2])
    shown = (*_SYSTEM, *_HARDWARE, sys.base_prefix, sys.prefix, *library_folders())
    options = [*_built(user), "--perms", "1777", "--size", str(ROOM), "--tmpfs", "/tmp"]
    for parent in _parents((*shown, str(directory))):
        # bubblewrap would let nobody but root look into those that it makes by itself.
        options += ["--dir", parent]
    for path in shown:
        options += ["--ro-bind-try", path, path]
    for name in ("passwd", "group", "hosts"):
        options += ["--ro-bind", str(directory / name), f"/etc/{name}"]
    options += ["--ro-bind", str(directory), str(directory)]
    options += ["--dev-bind", str(directory / "gpu"), str(directory / "gpu")]
    for name in ("state", "spool", "log", "run"):
        options += ["--perms", "0777", "--size", str(ROOM), "--tmpfs", str(directory / name)]
    shared = str(directory / "shared")
    options += ["--bind", shared, shared, "--chdir", shared, "--clearenv"]
    for name, value in _environment(directory).items():
        options += ["--setenv", name, value]
    return [*options, *_become(user), *map(str, words)]


def _built(user: int) -> list[str]:
    """bubblewrap, and what it keeps apart. The network is the node's own already."""
    options = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-cgroup-try", "--die-with-parent"]
    options += ["--proc", "/proc", "--dev", "/dev", "--cap-drop", "ALL"]
    if user == os.getuid():
        # On the head this user has capabilities, with which bubblewrap does not start.
        return ["setpriv", "--inh-caps=-all", "--ambient-caps=-all", *options, "--unshare-user"]
    return [*options, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def _parents(paths: Sequence[str]) -> list[str]:
    """The folders above these paths, outer ones first, each once."""
    found = {str(parent): None for path in paths for parent in reversed(Path(path).parents)}
    return [parent for parent in found if parent not in ("/", "/tmp")]


def _become(user: int) -> list[str]:
    """What takes the rights and sets the limits, before the command."""
    limits = ["prlimit", f"--nproc={_PROCESSES}", f"--fsize={ROOM}", f"--as={_ADDRESSES}", "--core=0"]
    if user == os.getuid():
        return limits
    ids = [f"--reuid={user}", f"--regid={user}"]
    return [*limits, "setpriv", *ids, "--clear-groups", "--inh-caps=-all"]


def _environment(directory: Path) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
        ),
        "SLURM_CONF": str(directory / "slurm.conf"),
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
    }
