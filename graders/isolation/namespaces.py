"""The inner sandbox: a forked process goes into it by itself, in milliseconds, before it sees a submission.

Namespaces of its own (users, mounts, processes, network, System V objects, host name), made through libc as
bubblewrap makes them; its own /proc, /tmp and /dev/shm; no privileges, and limits. The process that forked it
cannot be seen from there, nor signalled, nor traced.

    the warm process
     -> the init process, number 1 of the new process space, which watches the limits
         -> the process that runs the submission, without any privilege

When that ends, the kernel ends everything in its process space, however it has hidden itself.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import resource
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from graders.isolation.bubblewrap import visible
from graders.isolation.seccomp import install_filter
from graders.isolation.usage import Bounds, Meter, Usage, excess

LIMITS = {
    resource.RLIMIT_AS: 16 * 2**30,
    resource.RLIMIT_CPU: 600,
    resource.RLIMIT_FSIZE: 2**30,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_MSGQUEUE: 0,
}
"""Of every process of a submission, in any sandbox: address space, CPU seconds, size of a file ..."""

_WATCH_SECONDS = 0.05
_UNFINISHED = "the sandbox round it could not be built: "
_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""CLONE_NEWUSER, _NEWNS (mounts), _NEWPID, _NEWNET, _NEWIPC, _NEWUTS (host name); see clone(2)."""
_CLONE = {"x86_64": 56, "aarch64": 220}
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_PROGRAMS = 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_MOST_PIDS = 1024
"""Least that leaves room for `Bounds.processes`: numbers below 300 are given once only."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc_with_python = ctypes.PyDLL(None, use_errno=True)
"""The same, for the one call during which no other code may run."""


class NoNamespaces(OSError):
    """The kernel does not let an ordinary process make namespaces, or mount in them; it says which."""


def fork_sandboxed(body: Callable[[], NoReturn], channel: int, bounds: Bounds) -> tuple[int, int]:
    """Run `body` in a new process in the sandbox, which keeps the descriptor `channel` and no other.

    Returns the init process's id, and a descriptor from which, once it has ended, can be read how
    the process ended. Raises NoNamespaces if there cannot be one.
    """
    user, group = os.getuid(), os.getgid()
    reading, writing = os.pipe()
    init = _fork_into_namespaces()
    if init == 0:
        _be_init((user, group), body, channel, writing, bounds)
    os.close(writing)
    if init < 0:
        os.close(reading)
        raise NoNamespaces(
            ctypes.get_errno(), f"no namespaces can be made: {os.strerror(ctypes.get_errno())}"
        )
    return init, reading


def set_limits(limits: dict[int, int]) -> None:
    """Lower this process's own limits."""
    for limit, value in limits.items():
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def _fork_into_namespaces() -> int:
    """Like os.fork, and the child is the first process of namespaces of its own; negative for an error.

    os.fork has no such options, and unshare(2) takes one process more. What os.fork does for Python is done
    here too; what it does for the C library's other threads is not needed, for there are none.
    """
    number = _CLONE.get(platform.machine())
    if number is None:
        raise NoNamespaces(errno.ENOSYS, f"the number of clone(2) is not known on {platform.machine()}")
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid: int = _libc_with_python.syscall(number, _NAMESPACES | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


# ------------------------------------------------------------------------------------- the init process


def _be_init(
    user: tuple[int, int], body: Callable[[], NoReturn], channel: int, report: int, bounds: Bounds
) -> NoReturn:
    """Process 1: build the rest of the sandbox, start the process of the submission, and watch it.

    user: the ids of user and group, which stay the same.
    """
    try:
        Path("/proc/self/setgroups").write_text("deny")
        for kind, number in zip(("uid", "gid"), user, strict=True):
            Path(f"/proc/self/{kind}_map").write_text(f"{number} {number} 1")
        check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        os.setsid()
        _mount(bounds)
        _raise_loopback()
        child = os.fork()
        if child == 0:
            _be_sandboxed(body, channel, report, bounds)
        os.closerange(0, report)
        os.closerange(report + 1, 65536)
        os.write(report, _watch(child, bounds).encode())
    except OSError as error:
        os.write(report, f"{_UNFINISHED}{error}".encode())
    finally:
        os._exit(0)


def _mount(bounds: Bounds) -> None:
    """Own /proc, /tmp and /dev/shm, the latter two of limited size; everything else is read-only already."""
    _mount_at("/", None, _RECURSIVE | _PRIVATE)
    _mount_at("/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_PROGRAMS)
    # No more namespaces, in which new file systems could be mounted; newer kernels count processes too.
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    with contextlib.suppress(OSError):
        Path("/proc/sys/kernel/pid_max").write_text(str(_MOST_PIDS))
    _mount_at("/proc/sys", "/proc/sys", _BIND)
    _mount_at("/proc/sys", None, _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_PROGRAMS)
    hidden = [(path, os.open(path, os.O_PATH)) for path in visible() if _is_below(path, "/tmp")]
    room = f"size={bounds.files},nr_inodes={bounds.names},mode=1777"
    _mount_at("/tmp", "tmpfs", _NO_SUID | _NO_DEVICES, room)
    for path, descriptor in hidden:
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount_at(path, f"/proc/self/fd/{descriptor}", _BIND | _RECURSIVE)
        os.close(descriptor)
    Path("/tmp/.shm").mkdir(mode=0o1777)
    Path("/tmp/.shm").chmod(0o1777)
    # One file system for both, so that one bound holds for both together.
    _mount_at("/dev/shm", "/tmp/.shm", _BIND)
    # A terminal that one process opens there another one could read.
    _mount_at("/dev/pts", "tmpfs", _READ_ONLY | _NO_SUID | _NO_DEVICES, "size=4k,nr_inodes=2")
    os.chdir("/tmp")


def _mount_at(target: str, source: str | None, flags: int, options: str = "") -> None:
    """mount(2); a `source` without a slash is a kind of file system. Raises OSError."""
    name = source.encode() if source else None
    kind = None if source is None or source.startswith("/") else name
    done = _libc.mount(name, target.encode(), kind, ctypes.c_ulong(flags), options.encode() or None)
    check(done, f"mount on {target}")


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder + "/") and Path(path).exists()


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _watch(child: int, bounds: Bounds) -> str:
    """How the child ended, or why it has to."""
    reaped, meter = 0.0, Meter(enough=bounds.memory)
    while True:
        signal.sigtimedwait({signal.SIGCHLD}, _WATCH_SECONDS)
        while True:
            try:
                pid, status, spent = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == child:
                return described(os.waitstatus_to_exitcode(status))
            if pid == 0:
                break
            reaped += spent.ru_utime + spent.ru_stime
        now = meter.measure()
        too_much = excess(Usage(now.memory, now.processes, now.cpu_seconds + reaped), bounds)
        if too_much:
            return too_much


def described(code: int) -> str:
    """How a process ended, from its exit code as Python has it."""
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


# -------------------------------------------------------------------------- the process of the submission


def _be_sandboxed(body: Callable[[], NoReturn], channel: int, report: int, bounds: Bounds) -> NoReturn:
    """Give up everything, then run the body."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        # The init process's entries in /proc are closed to all others; its own must not be closed to itself.
        make_dumpable()
        # Whoever runs out of memory should be this one.
        Path("/proc/self/oom_score_adj").write_text("1000")
        set_limits({**LIMITS, resource.RLIMIT_NPROC: bounds.processes + 32, resource.RLIMIT_NOFILE: 1024})
        drop_privileges()
        install_filter(_libc)
    except OSError as error:
        os.write(report, f"{_UNFINISHED}{error}; ".encode())
        os._exit(70)
    try:
        os.closerange(3, channel)
        os.closerange(channel + 1, 65536)
        body()
    finally:
        os._exit(70)


def drop_privileges() -> None:
    """Give up every capability, for good. Raises OSError."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    check(_libc.capset(header, struct.pack("6I", *[0] * 6)), "capset")
    check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def make_dumpable() -> None:
    """Let this process open its own entries in /proc, which a change of user has closed to it."""
    check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def check(result: int, what: str) -> None:
    """Raise OSError for what a call of libc has returned."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
