"""A training step whose activations do not fit: when everything happens, for a given plan.

A model is a chain of layers. Each keeps activations from its forward for its backward, and a plan says of
each layer what becomes of them meanwhile, with the words of KARMA (M. Wahib et al., SC20): they are kept on
the device, swapped to the host, or thrown away and computed again.

The model of time: the device computes one thing at a time; copies to the host, and copies from it, run beside
that, one after another in each direction. Backward takes twice as long as forward. What a layer hands on to
the next is not counted.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

BACKWARD = 2.0
"""Backward of a layer takes so many times its forward: two matrix products for one."""


class Way(StrEnum):
    """What becomes of a layer's activations between forward and backward."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"


class DoesNotFit(ValueError):
    """At some moment a plan needs more memory than there is, however long it waits."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that happens: a layer's "forward", "again", "backward", "to host" or "to device"."""

    layer: int
    what: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Step:
    """A step in time. seconds: its length. peak: the most bytes held at once. spans: what happens."""

    seconds: float
    peak: float
    spans: tuple[Span, ...]


def step(
    plan: Sequence[str],
    bytes_: Sequence[float],
    seconds: Sequence[float],
    capacity: float,
    bandwidth: float,
) -> Step:
    """When everything happens in a step.

    bytes_, seconds: what each layer keeps for backward, and what its forward takes. capacity: bytes that the
    device has for activations. bandwidth: of the link to the host, bytes a second in each direction.

    A forward takes its layer's bytes when it begins, and waits until there is room. What is kept goes with
    the end of its backward; what is thrown away, with the end of its forward; what is swapped, when its copy
    to the host ends, which begins as soon as forward is done and the link is free. In backward, room for what
    has to come back is taken in the order in which it is needed, as early as possible: for the copies from
    the host, and for what is computed again just before its backward.

    Raises DoesNotFit where a layer waits for room that never comes.
    """
    ways = [Way(way) for way in plan]
    chain = _Chain(bytes_, seconds, bandwidth, _Room(capacity))
    for layer, way in enumerate(ways):
        chain.forward(layer, way)
    chain.turn()
    for layer, way in reversed(list(enumerate(ways))):
        chain.backward(layer, way)
    return Step(chain.computed, chain.room.peak, tuple(chain.spans))


class _Room:
    """The device's memory as time passes. It is asked for later and later moments only."""

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._held = self.peak = 0.0
        self._released: list[tuple[float, float]] = []
        """(seconds, bytes) that become free, the earliest first."""

    def take(self, nbytes: float, earliest: float) -> float:
        """Hold so many bytes from the first moment on when there is room. Returns that moment."""
        while self._released and (
            self._released[0][0] <= earliest or self._held + nbytes > self._capacity * (1 + 1e-12)
        ):
            free_at, freed = heapq.heappop(self._released)
            self._held -= freed
            earliest = max(earliest, free_at)
        self._held += nbytes
        if self._held > self._capacity * (1 + 1e-12):
            raise DoesNotFit(
                f"{self._held:.6g} bytes have to be held at once; there are {self._capacity:.6g}."
            )
        self.peak = max(self.peak, self._held)
        return earliest

    def release(self, nbytes: float, at: float) -> None:
        heapq.heappush(self._released, (at, nbytes))


class _Chain:
    """What the device and the two directions of the link have done so far."""

    def __init__(
        self, bytes_: Sequence[float], seconds: Sequence[float], bandwidth: float, room: _Room
    ) -> None:
        self.room = room
        self.spans: list[Span] = []
        self.computed = 0.0
        """When the device is free."""
        self._bytes, self._seconds, self._bandwidth = bytes_, seconds, bandwidth
        self._sent = self._fetched = self._room_taken = 0.0
        self._on_host: dict[int, float] = {}
        """Layer -> when its copy to the host ends."""

    def forward(self, layer: int, way: Way) -> None:
        begin = self.room.take(self._bytes[layer], self.computed)
        self._compute(layer, "forward", begin, self._seconds[layer])
        if way is Way.RECOMPUTE:
            self.room.release(self._bytes[layer], self.computed)
        elif way is Way.SWAP:
            self._sent = self._copy(layer, "to host", max(self._sent, self.computed))
            self._on_host[layer] = self._sent
            self.room.release(self._bytes[layer], self._sent)

    def turn(self) -> None:
        """From now on room is taken for backward."""
        self._room_taken = self.computed

    def backward(self, layer: int, way: Way) -> None:
        ready = self.computed
        if way is not Way.KEEP:
            self._room_taken = self.room.take(self._bytes[layer], self._room_taken)
        if way is Way.RECOMPUTE:
            self._compute(layer, "again", max(ready, self._room_taken), self._seconds[layer])
            ready = self.computed
        elif way is Way.SWAP:
            begin = max(self._fetched, self._room_taken, self._on_host[layer])
            self._fetched = self._copy(layer, "to device", begin)
            ready = max(ready, self._fetched)
        self._compute(layer, "backward", ready, BACKWARD * self._seconds[layer])
        self.room.release(self._bytes[layer], self.computed)

    def _compute(self, layer: int, what: str, begin: float, seconds: float) -> None:
        self.computed = begin + seconds
        self.spans.append(Span(layer, what, begin, self.computed))

    def _copy(self, layer: int, what: str, begin: float) -> float:
        end = begin + self._bytes[layer] / self._bandwidth
        self.spans.append(Span(layer, what, begin, end))
        return end
