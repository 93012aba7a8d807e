"""System calls that a submission does without: doors to memory that nobody counts, and to other processes.

Shut are memory files and System V's shared memory, which no limit reaches; locks and notices on files, by
which processes could speak that share only files that they cannot write; namespaces and mounts; and parts of
the kernel that no exercise needs and that often had holes. A call that is shut fails with EPERM.
"""

import ctypes
import errno
import platform
import struct

_MACHINES = ("x86_64", "aarch64")
_DENIED = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "flock": (73, 32),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
"""Numbers of the calls on each kind of machine, see syscalls(2)."""
_FCNTL = {"x86_64": 72, "aarch64": 25}
_FILE_LOCKS = (5, 6, 7, 36, 37, 38, 1024, 1026)
"""Of `fcntl`: F_GETLK, F_SETLK, F_SETLKW, the same of open file descriptions, F_SETLEASE, F_NOTIFY."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
"""Set in the numbers of x86-64's second set of calls, which would go round the first."""

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCH, _SECOND_ARGUMENT = 0, 4, 24
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM


def install_filter(libc: ctypes.CDLL) -> None:
    """Shut them for this process and all that it starts. Nothing happens on a machine of another kind."""
    machine = platform.machine()
    if machine not in _MACHINES:
        return
    program = b"".join(struct.pack("HBBI", *each) for each in _program(machine))
    kept = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(kept))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(head), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel accepts no filter of system calls (seccomp)")


def _program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter, in the kernel's classic BPF: (code, jump if true, jump if false, constant)."""
    steps = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _FAIL),
    ]
    shut = [numbers[_MACHINES.index(machine)] for numbers in _DENIED.values()]
    for number in filter(None, shut):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL)]
    steps += [(_EQUAL, 1, 0, _FCNTL[machine]), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _SECOND_ARGUMENT)]
    for command in _FILE_LOCKS:
        steps += [(_EQUAL, 0, 1, command), (_RETURN, 0, 0, _FAIL)]
    return [*steps, (_RETURN, 0, 0, _ALLOW)]
