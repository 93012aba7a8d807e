"""Process groups of ranks that stay: who waits in one can be freed, and then its members are connected anew.

A rank that waits in Gloo hears no signal: it goes on when its connections are closed. The object stays, so a
DistributedDataParallel or a variable of the program that holds the group finds it connected again.
"""

import os
import pickle
import socket
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from course_lib.runtime.communication.call import Call
from course_lib.runtime.communication.intercepted_group import TorchCall
from course_lib.runtime.communication.wording import ranks_in_words
from course_lib.runtime.processes.logged_calls import LoggedWork
from course_lib.runtime.processes.logged_group import LoggedGroup

_PAUSE_SECONDS = 0.002


class SwitchedStore(Store):
    """A store whose keys belong to the present generation of connections.

    It waits in Python, where a signal is heard, and not in C++.
    """

    def __init__(self, inner: Store, generation: int) -> None:
        super().__init__()
        self._inner = inner
        self.generation = generation

    def _key(self, key: str) -> str:
        return f"{self.generation}/{key}"

    def set(self, key: str, value: Any) -> None:
        """Keep a value, a string or bytes."""
        self._inner.set(self._key(key), value)

    def get(self, key: str) -> bytes:
        """The value, once a rank has set it."""
        self.wait([key])
        return self._inner.get(self._key(key))

    def add(self, key: str, value: int) -> int:
        """Count on by `value`; returns the sum."""
        return self._inner.add(self._key(key), value)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are set."""
        return self._inner.check([self._key(key) for key in keys])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are set. Raises RuntimeError when that takes too long."""
        end = None if timeout is None else time.monotonic() + timeout.total_seconds()
        while not self.check(list(keys)):
            if end is not None and time.monotonic() > end:
                raise RuntimeError(f"No rank has set {', '.join(keys)}.")
            time.sleep(_PAUSE_SECONDS)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set the value if it is the expected one; returns what it is then."""
        return self._inner.compare_set(self._key(key), expected, desired)

    def clone(self) -> Self:
        """Itself: it serves several threads."""
        return self

    # C++ looks for these two by its own names.

    def deleteKey(self, key: str) -> bool:  # noqa: N802
        """Forget a value; whether there was one."""
        return self._inner.delete_key(self._key(key))

    def getNumKeys(self) -> int:  # noqa: N802
        """How many keys there are, of all generations."""
        return self._inner.num_keys()


class RenewableGroup(LoggedGroup):
    """A group that can be connected anew."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        super().__init__(store, rank, size)
        self._store = store
        self._backends: list[tuple[torch.device, Any, Any]] = []
        self._default: Any = None
        self._before = _connected_sockets()
        self._sockets: set[tuple[int, int]] = set()
        self.gone = False
        """Whether one of the members has lost it."""

    def _register_backend(self, device: torch.device, kind: Any, backend: Any = None) -> None:
        super()._register_backend(device, kind, backend)
        self._backends.append((device, kind, backend))
        self._sockets |= _connected_sockets() - self._before

    def _set_default_backend(self, kind: Any) -> None:
        super()._set_default_backend(kind)
        self._default = kind

    def carry_out(
        self,
        call: Call,
        peer: int | None,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        torchs: TorchCall,
    ) -> LoggedWork | None:
        """Log the call and hand it on; a receive from anyone is waited for where a signal is heard."""
        if self.gone:
            members = ranks_in_words(self.call_group.members)
            raise RuntimeError(f"This group of {members} is gone: one of them has lost it. Make another one.")
        work = super().carry_out(call, peer, inputs, outputs, torchs)
        if work is not None and call.op == "recv" and peer is None:
            work.inner = _WaitedForAside(work.inner)
        return work

    def abort(self) -> None:
        """Free whoever waits in this group. Called from a thread that does not."""
        for descriptor, inode in self._sockets:
            _shut_down(descriptor, inode)
        self._sockets = set()
        for _, kind, backend in self._backends:
            if kind == dist.ProcessGroup.BackendType.NCCL:
                with suppress(RuntimeError):
                    backend.abort()

    def renew(self, timeout: timedelta) -> None:
        """Connect the members anew; all of them do it, under a store of another generation."""
        inner = dist.ProcessGroup(self._store, self.rank(), self.size())
        inner._set_default_backend(self._default)
        before = _connected_sockets()
        made: dict[int, Any] = {}
        for position, (device, kind, old) in enumerate(self._backends):
            if id(old) not in made:
                store = PrefixStore(f"{device.type}/", self._store)
                made[id(old)] = type(old)(store, self.rank(), self.size(), timeout)
            self._backends[position] = (device, kind, made[id(old)])
            inner._register_backend(device, kind, made[id(old)])
        self._sockets = _connected_sockets() - before
        inner._set_group_name(self.group_name)
        inner._set_group_desc(self.group_desc)
        self._inner = inner


class _WaitedForAside:
    """The handle of a receive from anyone, which goes on waiting when connections are closed.

    Another thread waits for it, and this one for that thread, where it hears a signal.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def wait(self, *timeout: Any) -> bool:
        over: list[Any] = []
        there = threading.Event()

        def wait() -> None:
            try:
                over.append(self._inner.wait(*timeout))
            except BaseException as error:
                over.append(error)
            there.set()

        threading.Thread(target=wait, daemon=True).start()
        there.wait()
        if isinstance(over[0], BaseException):
            raise over[0]
        return bool(over[0])


# --- All groups of this rank

_store: SwitchedStore | None = None


def switched(store: Store, generation: int) -> SwitchedStore:
    """The store through which this rank's groups meet."""
    global _store
    _store = SwitchedStore(store, generation)
    return _store


def abort_groups() -> None:
    """Free this rank's main thread from whatever group it waits in. Called from another thread."""
    for group in _groups():
        group.abort()


def renew_groups(generation: int, timeout: timedelta) -> list[tuple[int, ...]]:
    """Connect this rank's groups anew; every rank does it. Returns the members of those that cannot be:
    one of their members has not got them any more.
    """
    assert _store is not None
    default: Any = distributed_c10d._get_default_group()
    # A process that has taken a dead one's place is connecting it already, and the others come to meet it.
    if _store.generation != generation:
        abort_groups()
        _store.generation = generation
        default.renew(timeout)
    own = {group.group_name: (group, tuple(dist.get_process_group_ranks(group))) for group in _groups()}
    own.pop(default.group_name)
    everyones = _exchanged(_store, {name: members for name, (_, members) in own.items()})
    gone = []
    for name in sorted(own):
        group, members = own[name]
        if all(everyones[member].get(name) == members for member in members):
            group.renew(timeout)
        else:
            group.gone = True
            gone.append(members)
    return gone


def _exchanged(store: SwitchedStore, names: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank's groups are, by name. From then on all ranks give the same names to new ones."""
    world: Any = distributed_c10d._world
    store.set(f"groups/{dist.get_rank()}", pickle.dumps((names, world.group_count)))
    told = [pickle.loads(store.get(f"groups/{rank}")) for rank in range(dist.get_world_size())]
    world.group_count = max(count for _, count in told)
    return [of_rank for of_rank, _ in told]


def _groups() -> Iterator[RenewableGroup]:
    for group in list(distributed_c10d._world.pg_map):
        if isinstance(group, RenewableGroup) and not group.gone:
            yield group


# --- Gloo's connections


def _connected_sockets() -> set[tuple[int, int]]:
    """Descriptor and inode of this process's TCP connections."""
    found = set()
    for name in os.listdir("/dev/fd"):
        # The folder's own descriptor is closed by now.
        with suppress(OSError):
            descriptor = int(name)
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and _is_connection(descriptor):
                found.add((descriptor, status.st_ino))
    return found


def _is_connection(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        return (
            copy.family in (socket.AF_INET, socket.AF_INET6)
            and copy.type == socket.SOCK_STREAM
            and not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        )


def _shut_down(descriptor: int, inode: int) -> None:
    """Close a connection for both sides; its owner, who notices, lets go of the descriptor."""
    with suppress(OSError):
        if os.fstat(descriptor).st_ino == inode:
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                copy.shutdown(socket.SHUT_RDWR)
