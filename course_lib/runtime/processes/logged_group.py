"""Process groups that log every call, and are torch's own in everything else.

`install` has `torch.distributed` make a `LoggedGroup` wherever it would make a `ProcessGroup`. Each call is
logged and handed to an ordinary group, which hands it to Gloo or NCCL.
"""

# torch's stubs list older forms of some methods, which torch itself does not call.
# mypy: disable-error-code="override"

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from course_lib.runtime.communication.call import NEW_GROUP, Call, Group
from course_lib.runtime.communication.callsite import caller_line
from course_lib.runtime.communication.ddp_join import waiting_in_join
from course_lib.runtime.communication.intercepted_group import InterceptedGroup, TorchCall
from course_lib.runtime.processes.call_log import CallLog
from course_lib.runtime.processes.gloo_gaps import carried_out, without_its_greeting
from course_lib.runtime.processes.logged_calls import CallLogger, LoggedCall, LoggedWork


class LoggedGroup(InterceptedGroup):
    """One rank's end of a process group, which logs every call and hands it to an ordinary group.

    It does not call the base class's own methods: those of a Python subclass hold Python's global lock while
    Gloo takes its own locks, and Gloo's threads do the reverse when they let go of tensors.
    """

    logger: CallLogger
    """Set by `install`, once a process."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._inner = dist.ProcessGroup(store, rank, size)

    def get_group_store(self) -> Store:
        """The store through which the members have met."""
        return self._inner.get_group_store()

    # What torch tells a new group goes to both: C++ asks this one for its backends.

    def _register_backend(self, device: torch.device, kind: Any, backend: Any = None) -> None:
        super()._register_backend(device, kind, backend)
        self._inner._register_backend(device, kind, backend)

    def _set_default_backend(self, kind: Any) -> None:
        super()._set_default_backend(kind)
        self._inner._set_default_backend(kind)

    def _set_group_name(self, name: Any) -> None:
        super()._set_group_name(name)
        self._inner._set_group_name(name)

    def _set_group_desc(self, description: str) -> None:
        super()._set_group_desc(description)
        self._inner._set_group_desc(description)

    @functools.cached_property
    def call_group(self) -> Group:
        """This rank's own object for the group."""
        return Group(self.group_name, tuple(dist.get_process_group_ranks(self)))

    def carry_out(
        self,
        call: Call,
        peer: int | None,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        torchs: TorchCall,
    ) -> LoggedWork | None:
        """Log the call and hand it on; no handle where the backend has none since the call is over."""
        number = self.logger.posted(call, peer)
        name, *arguments = torchs
        work = carried_out(self._inner, name, arguments)
        if work is None:
            self.logger.done(number)
            return None
        on_gpu = any(tensor.is_cuda for tensor in (*inputs, *outputs))
        if on_gpu:
            self.logger.log_end_on_gpu(number, work)
        elif call.asynchronous and not call.is_message:
            self.logger.log_end(number, work)
        anyone = call.group.members if call.op == "recv" and peer is None else None
        return LoggedWork(work, self.logger, LoggedCall(number, call, on_gpu), anyone)

    def monitored_barrier(self, *arguments: Any, **options: Any) -> None:
        """Wait for everyone; raises if somebody does not come."""
        number = self.logger.posted(Call("monitored_barrier", self.call_group, line=caller_line()))
        with self.logger.resuming(number):
            self._inner.monitored_barrier(*arguments, **options)  # type: ignore[attr-defined]


def install(log: CallLog, kind: type[LoggedGroup] = LoggedGroup) -> CallLogger:
    """Have `torch.distributed` make groups of this kind in this process from now on."""
    logger = LoggedGroup.logger = CallLogger(log)
    distributed_c10d.ProcessGroup = kind  # type: ignore[misc]
    distributed_c10d._new_group_with_tag = _logged_new_group(distributed_c10d._new_group_with_tag, logger)
    distributed_c10d._new_process_group_helper = without_its_greeting()(
        distributed_c10d._new_process_group_helper
    )
    for owner, name, method in waiting_in_join():
        setattr(owner, name, method)
    return logger


def _logged_new_group(make: Any, logger: CallLogger) -> Any:
    """torch's function that makes a group, with the call logged: all ranks must make the same groups."""

    @functools.wraps(make)
    def new_group(ranks: Any = None, *arguments: Any, **options: Any) -> Any:
        everyone = tuple(range(dist.get_world_size()))
        members = everyone if ranks is None else tuple(sorted(ranks))
        alone = options.get("use_local_synchronization", False)
        group = Group(f"{NEW_GROUP}{members if alone else ''}", members if alone else everyone)
        call = Call(NEW_GROUP, group, reduction=str(list(members)), line=caller_line())
        with logger.resuming(logger.posted(call)):
            return make(ranks, *arguments, **options)

    return new_group
