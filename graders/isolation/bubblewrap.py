"""The outer sandbox round the processes that run submissions: bubblewrap, where there is one.

In it stands one warm process (`graders.guest.fork_server`), which builds a sandbox of its own round each
process that touches a submission (`graders.isolation.namespaces`).
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import course_lib
from course_lib.library_folders import library_folders

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix")
_SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
)
_HARDWARE = "/sys/devices/system/cpu"
"""PyTorch looks here for what the processor can do."""
NOBODY = 65534
"""The user as whom root runs submissions."""


def sandboxed(command: Sequence[str]) -> list[str]:
    """The command in a sandbox: it sees the system, this Python and the course's library, read-only.

    There is no network, no other process, no home, no notebook, no gradebook. /tmp and /dev/shm are empty,
    and all that it writes there is gone when it ends.
    """
    options = ["--unshare-all", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"]
    # Horovod's Gloo looks up this machine's name, and without /etc/hosts only an address is found.
    options += ["--hostname", "127.0.0.1"]
    # /tmp before what is visible: the course itself may lie below it.
    options += ["--tmpfs", "/dev/shm", "--tmpfs", "/tmp", *_binds()]
    sealed = ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
    behind = [*_BUBBLEWRAP, *options, *sealed, *command]
    return _as_nobody(behind) if os.geteuid() == 0 else behind


def visible() -> Iterator[str]:
    """The parts of the file system that Python needs, and the course's library."""
    yield from (*_SYSTEM, *_SYSTEM_FILES, _HARDWARE, sys.base_prefix, sys.prefix, *library_folders())
    yield from (course_lib.__path__[0], str(Path(__file__).parents[1]))


_BUBBLEWRAP = ("bwrap", "--die-with-parent")


def _binds() -> list[str]:
    return [option for path in visible() for option in ("--ro-bind-try", path, path)]


def _as_nobody(command: list[str]) -> list[str]:
    """The command as a user who owns nothing, so that limits hold: the kernel exempts root from some.

    Only root can walk to a library in root's home, so root shows it to the command, in a tree of its own.
    """
    folders = sorted({str(folder) for path in visible() for folder in Path(path).parents} | {"/tmp"})
    tree = [option for folder in folders for option in ("--dir", folder)]
    tree += [*_binds(), "--bind", "/proc", "/proc", "--dev", "/dev"]
    leave = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return [*_BUBBLEWRAP, *tree, *leave, *command]
