"""Entering the outer sandbox by a fork: a process that has imported PyTorch need not do it again in there.

bubblewrap builds the sandbox, as always, round a small program, which hands out descriptors of its namespaces
and waits. A process forked from here joins them with setns(2), as nsenter(1) does, and gives up what it had:
descriptors, privileges, and as root the user. When the small program ends, the kernel ends all that is in
there, for the sandbox's first process goes with it.
"""

import ctypes
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn, Self

from graders.isolation.bubblewrap import NOBODY, sandboxed
from graders.isolation.namespaces import check, drop_privileges, make_dumpable

_SECONDS = 60.0
_NAMES = ("mnt", "pid", "net", "ipc", "uts", "cgroup", "user")
_HOLDER = f"""
import os, socket
channel = socket.socket(fileno=0)
names = [f"/proc/self/ns/{{name}}" for name in {_NAMES!r}]
socket.send_fds(channel, [b"!"], [os.open(name, os.O_RDONLY) for name in names])
channel.recv(1)
"""
_NS_GET_USERNS = 0xB701
_libc = ctypes.PyDLL(None, use_errno=True)


class HeldSandbox:
    """The outer sandbox, held open by a small program. A context: leaving it ends all that is in there."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._holder = subprocess.Popen(
                sandboxed([sys.executable, "-I", "-S", "-c", _HOLDER]),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that is in there."""
        self._channel.close()
        self._holder.wait()

    def fork(self, body: Callable[[], NoReturn], channel: int) -> int:
        """Run `body` in there, in a fork of this process that keeps the descriptor `channel` and no other.

        Returns the id of a process that ends as the fork does, at once if the sandbox is not to be had.
        To be called while this process has one thread.
        """
        self._channel.settimeout(_SECONDS)
        _, namespaces, _, _ = socket.recv_fds(self._channel, 1, len(_NAMES))
        pid = os.fork()
        if pid == 0:
            _enter_and_run(namespaces, body, channel)
        for descriptor in namespaces:
            os.close(descriptor)
        return pid


def _enter_and_run(namespaces: list[int], body: Callable[[], NoReturn], channel: int) -> NoReturn:
    """In the fork. Only a child of it is in the new process space."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.setsid()
        _join(namespaces)
        child = os.fork()
        if child == 0:
            os.closerange(3, channel)
            os.closerange(channel + 1, 65536)
            os.chdir("/tmp")
            make_dumpable()
            body()
        os.closerange(3, 65536)
        os._exit(min(255, abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))))
    finally:
        os._exit(70)


def _join(namespaces: list[int]) -> None:
    """Join the namespaces, in the order of `_NAMES`, and keep no privilege. Raises OSError."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    # Most belong to a first space of users, and the program is in a second one within it.
    owner = fcntl.ioctl(namespaces[0], _NS_GET_USERNS)
    # In the sandbox's /proc this process is not to be found.
    own = {os.stat(f"/proc/self/ns/{name}").st_ino for name in _NAMES}
    joined = {os.fstat(descriptor).st_ino: descriptor for descriptor in (owner, *namespaces)}
    for inode, descriptor in joined.items():
        if inode not in own:
            check(_libc.setns(descriptor, 0), "setns")
    drop_privileges()
