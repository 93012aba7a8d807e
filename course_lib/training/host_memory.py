"""A place on the host for what a device has no room for, and copies that run beside the computing.

On a GPU copies go through pinned memory on two streams of their own. On simulated ranks they take virtual
time on the cluster's `host` link. Where the device is the CPU, its memory is the host's, and a copy is over
at once.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from course_lib.runtime.simulator.engine import RankEngine, current_engine, current_rank

LEAVING = 2
"""Copies to the host that may be under way at a time.

A program runs ahead of its GPU: without a bound every tensor whose copy has not begun is still there. On
an H100, 12 layers of 4096 on 16,384 rows in float32 took 8.06 GiB with everything kept, 8.56 GiB without a
bound, 3.06 GiB with two copies and 2.81 GiB with one, in 0.380, 0.404, 0.404 and 0.460 s a step: with one
the device waits for copies.
"""


class Copy(Protocol):
    """A copy that is under way or over."""

    @property
    def over(self) -> bool:
        """Whether it is over by now."""
        ...

    def wait(self) -> None:
        """What is computed from now on comes after it."""
        ...

    def synchronize(self) -> None:
        """The program waits until it is over, where the program runs ahead of its device."""
        ...


class HostMemory:
    """This rank's memory on the host. nbytes: what lies there now.

    leaving: copies to the host that may be under way at a time; None: any number.
    """

    def __init__(self, leaving: int | None = LEAVING) -> None:
        self.nbytes = 0
        self._most_leaving = leaving
        self._links: dict[torch.device, _Link] = {}
        self._leaving: deque[tuple[Copy, Tensor]] = deque()
        """Copies to the host with their sources, whose memory is needed until they are over."""

    def to_host(self, tensor: Tensor) -> "HostTensor":
        """Begin to copy a tensor to the host, after the copies that go there already.

        Returns at once, but on a device that lags behind, where `leaving` copies are under way: then the
        oldest is waited for. The tensor's memory stays taken until the copy is over, and no longer.
        """
        if tensor.device not in self._links:
            self._links[tensor.device] = _link_of(tensor.device)
        self._let_go()
        if self._most_leaving is not None and len(self._leaving) >= self._most_leaving:
            self._leaving[0][0].synchronize()
            self._let_go()
        held = HostTensor(self, tensor, self._links[tensor.device])
        self._leaving.append((held.copy, tensor.detach()))
        return held

    def _let_go(self) -> None:
        while self._leaving and self._leaving[0][0].over:
            self._leaving.popleft()


class HostTensor:
    """A tensor that lies on the host, or is on its way there; its memory is free when nobody refers to it."""

    def __init__(self, memory: HostMemory, tensor: Tensor, link: "_Link") -> None:
        self.nbytes = tensor.numel() * tensor.element_size()
        self._memory, self._link = memory, link
        self._data, self.copy = link.to_host(tensor.detach())
        memory.nbytes += self.nbytes

    def to_device(self) -> "Arriving":
        """Begin to copy it back, after the copies that come from the host already. Returns at once.

        The device's memory is taken from now on. It can be copied back more than once.
        """
        self._memory._let_go()
        return Arriving(*self._link.to_device(self._data, self.copy))

    def __del__(self) -> None:
        # Not there if the copy could not begin.
        if hasattr(self, "_data"):
            self._memory.nbytes -= self.nbytes


class Arriving:
    """A copy to the device that is under way."""

    def __init__(self, tensor: Tensor, copy: Copy) -> None:
        self._tensor, self._copy = tensor, copy

    def wait(self) -> Tensor:
        """Wait until it is over: a tensor as the one that went to the host was."""
        self._copy.wait()
        return self._tensor


class _Link(Protocol):
    """How a device's tensors get to the host and back."""

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Copy]: ...

    def to_device(self, data: Tensor, after: Copy) -> tuple[Tensor, Copy]: ...


def _link_of(device: torch.device) -> _Link:
    rank = current_rank.get()
    if rank is not None:
        return _VirtualLink(current_engine.get(), rank)
    return _Streams(device) if device.type == "cuda" else _NoLink()


@dataclass(frozen=True, slots=True)
class _Done:
    """Nothing to wait for."""

    over: bool = True

    def wait(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _NoLink:
    """The device is the host."""

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Copy]:
        return _hidden_copy(tensor), _Done()

    def to_device(self, data: Tensor, after: Copy) -> tuple[Tensor, Copy]:
        return _arrived(data), _Done()


@dataclass(frozen=True, slots=True)
class _VirtualCopy:
    """A copy that ends at a virtual time."""

    engine: RankEngine
    rank: int
    end: float

    @property
    def over(self) -> bool:
        return self.engine.host_now(self.rank) >= self.end

    def wait(self) -> None:
        self.engine.wait_until(self.rank, self.end)

    def synchronize(self) -> None:
        self.engine.host_wait(self.rank, self.end)


class _VirtualLink:
    """A simulated rank's."""

    def __init__(self, engine: RankEngine, rank: int) -> None:
        self._engine, self._rank = engine, rank

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Copy]:
        nbytes = tensor.numel() * tensor.element_size()
        end = self._engine.copy(self._rank, nbytes, True, 0.0)
        return _hidden_copy(tensor), _VirtualCopy(self._engine, self._rank, end)

    def to_device(self, data: Tensor, after: Copy) -> tuple[Tensor, Copy]:
        assert isinstance(after, _VirtualCopy)
        nbytes = data.numel() * data.element_size()
        end = self._engine.copy(self._rank, nbytes, False, after.end)
        return _arrived(data), _VirtualCopy(self._engine, self._rank, end)


def _hidden_copy(tensor: Tensor) -> Tensor:
    """A copy that is neither the device's memory nor its computing."""
    with torch.no_grad(), _disable_current_modes():
        return tensor.clone()


def _arrived(data: Tensor) -> Tensor:
    """A tensor of the device's with this data; filling it is not computing."""
    with torch.no_grad():
        target = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype, device=data.device)
        with _disable_current_modes():
            target.copy_(data)
    return target


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A copy on a stream of its own."""

    event: torch.cuda.Event
    arriving: Tensor | None = None

    @property
    def over(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        stream = torch.cuda.current_stream()
        stream.wait_event(self.event)
        if self.arriving is not None:
            # So that its memory is not given away while this stream still reads it.
            self.arriving.record_stream(stream)

    def synchronize(self) -> None:
        self.event.synchronize()


class _Streams:
    """A GPU's two copy engines."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Copy]:
        pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            pinned.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._out)
        return pinned, _Recorded(self._out.record_event())

    def to_device(self, data: Tensor, after: Copy) -> tuple[Tensor, Copy]:
        assert isinstance(after, _Recorded)
        self._in.wait_event(after.event)
        with torch.cuda.stream(self._in):
            target = data.to(self._device, non_blocking=True)
        return target, _Recorded(self._in.record_event(), target)
