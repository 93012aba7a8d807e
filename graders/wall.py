"""A wall round the process that runs a submission: bubblewrap, where the machine has it and allows it."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import course_lib
import graders

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


@cache
def can_build_wall() -> bool:
    """Whether bubblewrap is here and works; containers often forbid it."""
    if shutil.which("bwrap") is None:
        return False
    probe = [*_bubblewrap(), "--ro-bind", "/", "/", "true"]
    return subprocess.run(probe, capture_output=True, timeout=10, check=False).returncode == 0


def walled(command: list[str], scratch: Path) -> list[str]:
    """The command behind a wall: it sees the system, this Python and the course's library, read-only.

    There is no network, no other process, no home, no notebook, no gradebook. `scratch` is its /tmp, the only
    place where it can write.
    """
    # /tmp first: the course itself may lie below it.
    return [*_bubblewrap(), "--bind", str(scratch), "/tmp", *_visible(), "--chdir", "/tmp", *command]


def _bubblewrap() -> list[str]:
    return ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]


def _visible() -> list[str]:
    """Options that show the parts of the file system that Python needs."""
    packages = (package.__path__[0] for package in (course_lib, graders))
    options = ["--proc", "/proc", "--dev", "/dev"]
    for path in (*_SYSTEM, *_SYSTEM_FILES, _HARDWARE, sys.base_prefix, sys.prefix, *packages):
        options += ["--ro-bind-try", path, path]
    return options
