"""The simulated GPU where a program names its device: PyTorch takes it for one, and the processor computes.

Its clocks, rates and rules of what waits are those of the device that simulated ranks compute on. There all
tensors lie on the device. A program that is handed a device has tensors on the host too, and what a GPU
refuses is to mix them: this package is what that needs. It stands where PyTorch dispatches each operation to
a device, below autograd. So whatever a program writes, the operations come here that would come to a real
one. What that refuses, and what makes a program wait, is told by operations, not by the program's words.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch._ops import OpOverload

from course_lib.cluster.presets import one_h100
from course_lib.runtime.communication.callsite import caller_line
from course_lib.runtime.communication.events import Kind, SourceLine
from course_lib.runtime.device_rules import name_of, tensors_in
from course_lib.runtime.eager_mode import EagerDispatchMode
from course_lib.runtime.simulator.device_clock import DeviceClock
from course_lib.runtime.simulator.engine import current_rank
from course_lib.runtime.simulator.roofline import Roofline
from graders.units.gpu.rules import HOST, NAME, waits
from graders.units.gpu.tensors import DATA, computed, entered, gpu, on_host, plain, set_data

__all__ = ["HOST", "WAITS", "Gpu", "gpu", "on_host", "plain"]

WAITS = "waits in "
"""What an entry of a log begins with, each time that somebody waits for the device. Then comes the line."""


class Gpu(EagerDispatchMode):
    """While a thread has entered it the device can be named, and it is noted when somebody waits for it.

    Several threads may, as simulated ranks do. On these the operations go to their own device's clock.
    """

    def __init__(self, log: list[str]) -> None:
        """log: gets an entry each time that somebody waits, see WAITS."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log
        self._left = ExitStack()
        cluster = one_h100()
        self.clock = DeviceClock(self._noted, cluster.computes, cluster.host)
        self._roofline = None if current_rank.get() is not None else Roofline(cluster.computes)

    def _noted(self, what: str, kind: Kind, *_: float, line: SourceLine | None = None, **__: int) -> None:
        if kind is Kind.HOST and what == "waits":
            self._log.append(f"{WAITS}{line or 'a library'}"[:200])

    def computes(
        self, operation: OpOverload, arguments: Sequence[Any], options: Mapping[str, Any], result: Any
    ) -> None:
        if self._roofline is None or operation.is_view:
            return
        self.clock.queue()
        self.clock.compute(self._roofline.seconds(operation, arguments, options, result))

    def brought(self, nbytes: int) -> None:
        if self._roofline is not None:
            self.clock.begin_at(self.clock.copy(nbytes, to_host=False))

    def waited_for(self, nbytes: int) -> None:
        self.clock.host_wait(self.clock.copy(nbytes, to_host=True), caller_line())

    def __enter__(self) -> Self:
        gpu()
        _settings.enter()
        self._left.callback(_settings.leave)
        entered.cards.append(self)
        self._left.callback(entered.cards.pop)
        default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        self._left.callback(_set_default, default)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._left.close()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if name_of(func) in ("pin_memory", "_pin_memory"):
            return args[0].clone()
        if _can_decompose(func):  # in inference mode it comes whole
            with self._again():
                return func.decompose(*args, **options)
        if waits(func, args, options):
            self.waited_for(sum(each.nbytes for each in tensors_in(args)[:1]))
        return computed(func, args, options)

    @contextmanager
    def _again(self) -> Iterator[None]:
        """What an operation consists of comes here, too."""
        super().__enter__()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]


@cache
def _can_decompose(operation: OpOverload) -> bool:
    return operation._can_decompose()


def _set_default(context: Any) -> None:
    """The default device as it was. An older PyTorch cannot say which it is, once it was set to none."""
    torch.set_default_device(context and context.device)
    if context is None:
        vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)


class _Settings:
    """Those of PyTorch that a whole process has. They stay until the last thread has left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = ExitStack()

    def enter(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._set()

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before.close()

    def _set(self) -> None:
        # A model that moves keeps its parameters; `tensor` makes its numbers on the host and moves them.
        for setting, now in (
            (
                torch.__future__.set_swap_module_params_on_conversion,
                torch.__future__.get_swap_module_params_on_conversion(),
            ),
            (torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors()),
        ):
            self._before.callback(setting, now)
            setting(True)
        data = property(DATA.__get__, set_data)  # type: ignore[attr-defined]
        patches = ((torch.autocast, "__init__", _autocast_begins), (Tensor, "data", data))
        for owner, name, instead in patches:
            self._before.enter_context(mock.patch.object(owner, name, instead))


_settings = _Settings()
_begins = torch.autocast.__init__


@wraps(_begins)
def _autocast_begins(
    autocast: torch.autocast,
    device_type: str,
    dtype: Any = None,
    enabled: bool = True,
    *rest: Any,
    **more: Any,
) -> None:
    """PyTorch has no mixed precision for a device of this kind; to have it off is possible on all."""
    known = HOST.type if device_type == NAME and not enabled else device_type
    _begins(autocast, known, dtype, enabled, *rest, **more)
