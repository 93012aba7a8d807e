"""Follows what a rank's tensors hold in memory, storage by storage, and records each change.

Every operation of the rank's thread is seen, forward and backward (a `TorchDispatchMode`); a storage is held
from the operation that made it until nobody refers to it, be it a variable or the graph of autograd. What an
operation allocates and frees within itself is not seen (but told, if it is known: `Device.cuda_kernels`), nor
is memory that is no tensor's.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import (
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from course_lib.runtime.communication.memory import MemoryKind
from course_lib.runtime.eager_mode import EagerDispatchMode


class MemoryRecorder(Protocol):
    """What an engine offers to a rank whose memory is followed."""

    @property
    def communicating(self) -> bool:
        """Whether the engine itself is at work in the rank's thread: its tensors are not the rank's."""
        ...

    def record_memory(self, kind: str, nbytes: int) -> None:
        """From now on the rank holds so many bytes of this kind."""
        ...


def call_followed(
    recorder: MemoryRecorder,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    temporary_bytes: Callable[[Any, Any], int] | None = None,
) -> Any:
    """function(*arguments), with what the rank holds meanwhile recorded.

    temporary_bytes(operation, result): what an operation takes and gives back before it is over, if that is
    known.
    """
    _watch_torch()
    tracker = MemoryTracker(recorder, temporary_bytes)
    _active.add(tracker)
    try:
        tracker.given(arguments)
        with tracker:
            return function(*arguments)
    finally:
        _active.discard(tracker)
        tracker.close()


@dataclass(slots=True)
class _Held:
    """A storage that lives. gone: calls back when it no longer does."""

    gone: "weakref.ref[torch.UntypedStorage]"
    nbytes: int
    kind: MemoryKind


class MemoryTracker(EagerDispatchMode):
    """While it is entered, each tensor operation of the thread is the rank's."""

    def __init__(
        self, recorder: MemoryRecorder, temporary_bytes: Callable[[Any, Any], int] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._temporary_bytes = temporary_bytes
        self._held: dict[int, _Held] = {}
        self._bytes = dict.fromkeys(MemoryKind, 0)
        self._hooks = WeakIdKeyDictionary()
        """Parameter -> the handle of its hook."""
        self._changes: deque[tuple[MemoryKind, int]] = deque()
        self._recording = threading.Lock()
        self._closed = False
        self._has_data = False
        """Whether the rank was given data: then what has a shape alone holds nothing."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._closed or self._recorder.communicating:
            return func(*args, **kwargs)
        for tensor in _tensors(*args, *kwargs.values()):
            self._see(tensor, MemoryKind.INPUTS)
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            # A DTensor first: then the operations on what it is made of come here.
            return NotImplemented
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            self._see(tensor, MemoryKind.ACTIVATIONS)
        if self._temporary_bytes and (nbytes := self._temporary_bytes(func, result)):
            self._change(MemoryKind.ACTIVATIONS, nbytes)
            self._change(MemoryKind.ACTIVATIONS, -nbytes)
        return result

    def given(self, arguments: Sequence[Any]) -> None:
        """Hold what the rank's function is called with."""
        # So that a rank which never holds a tensor is known to have been followed.
        self._change(MemoryKind.PARAMETERS, 0)
        leaves = tree_leaves(list(arguments))
        own = [
            t for leaf in leaves if isinstance(leaf, nn.Module) for t in (*leaf.parameters(), *leaf.buffers())
        ]
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._has_data = not all(tensor.is_meta for tensor in (*own, *given))
        for tensor in own:
            self._see(tensor, MemoryKind.PARAMETERS)
        for tensor in given:
            self._see(tensor, MemoryKind.INPUTS)

    def label(self, tensor: Tensor, kind: MemoryKind) -> None:
        """Say what a tensor is for, if it is one that the rank holds."""
        for storage in _storages(tensor):
            if held := self._held.get(storage._cdata):
                self._relabel(held, kind)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Take in that a storage has another size, as FSDP2 gives to parameters that it has gathered."""
        if held := self._held.get(storage._cdata):
            self._change(held.kind, storage.nbytes() - held.nbytes)
            held.nbytes = storage.nbytes()

    def close(self) -> None:
        """Record nothing any more, and leave the parameters without hooks."""
        self._closed = True
        for hook in self._hooks.values():  # type: ignore[no-untyped-call]
            hook.remove()
        self._held.clear()

    # --- Storages

    def _see(self, tensor: Tensor, kind: MemoryKind) -> None:
        """Hold a tensor's storage from now on, as of this kind if it is new; a parameter is one anyway."""
        is_parameter = isinstance(tensor, nn.Parameter)
        for storage in _storages(tensor):
            held = self._held.get(storage._cdata)
            if held is None:
                self._hold(storage, MemoryKind.PARAMETERS if is_parameter else kind)
            elif is_parameter:
                self._relabel(held, MemoryKind.PARAMETERS)
        if is_parameter and tensor.requires_grad and tensor not in self._hooks:
            self._hooks[tensor] = tensor.register_post_accumulate_grad_hook(_label_gradient)  # type: ignore[no-untyped-call]

    def _hold(self, storage: torch.UntypedStorage, kind: MemoryKind) -> None:
        if self._has_data and storage.device.type == "meta":
            return
        key = storage._cdata
        gone = weakref.ref(storage, lambda _: self._free(key))
        self._held[key] = _Held(gone, storage.nbytes(), kind)
        self._change(kind, storage.nbytes())

    def _free(self, key: int) -> None:
        if held := self._held.pop(key, None):
            self._change(held.kind, -held.nbytes)

    def _relabel(self, held: _Held, kind: MemoryKind) -> None:
        if held.kind is not kind:
            self._change(held.kind, -held.nbytes)
            held.kind = kind
            self._change(kind, held.nbytes)

    def _change(self, kind: MemoryKind, nbytes: int) -> None:
        """Record a change. One that comes while another is recorded, be it from the garbage collector in
        this very thread, is recorded after it."""
        self._changes.append((kind, nbytes))
        while self._changes and self._recording.acquire(blocking=False):
            try:
                while self._changes and not self._closed:
                    changed, by = self._changes.popleft()
                    self._bytes[changed] += by
                    self._recorder.record_memory(changed.value, self._bytes[changed])
            finally:
                self._recording.release()
            if self._closed:
                return


def _tensors(*values: Any) -> list[Tensor]:
    """Those among an operator's arguments or results, which are in lists if they are in anything.

    Not by `tree_leaves`: there are two calls for each operation, and it takes ten times as long.
    """
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(*value)
    return found


def _storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """Where a tensor's data lies; of one that is made of others, such as a DTensor, where theirs does."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            # A DTensor's mesh is among them too.
            if isinstance(part := getattr(tensor, name), Tensor):
                yield from _storages(part)
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()


# --- What torch does without an operation

_active: set[MemoryTracker] = set()
"""Those of all ranks of this process. Their storages are their own, so each finds what concerns it."""


@cache
def _watch_torch() -> None:
    """Have this process tell trackers of optimizers' steps and of storages that are resized."""
    register_optimizer_step_pre_hook(_label_parameters)
    register_optimizer_step_post_hook(_label_state)
    resize = torch.UntypedStorage.resize_

    def resize_seen(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        for tracker in list(_active):
            tracker.resized(storage)
        return result

    torch.UntypedStorage.resize_ = resize_seen  # type: ignore[assignment]


def _label_gradient(parameter: Tensor) -> None:
    if parameter.grad is not None:
        _label(parameter.grad, MemoryKind.GRADIENTS)


def _label_parameters(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Gradients that came without autograd's accumulating, such as FSDP2's."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _label_gradient(parameter)


def _label_state(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for leaf in tree_leaves(list(optimizer.state.values())):
        if isinstance(leaf, Tensor):
            _label(leaf, MemoryKind.OPTIMIZER)


def _label(tensor: Tensor, kind: MemoryKind) -> None:
    for tracker in list(_active):
        tracker.label(tensor, kind)
