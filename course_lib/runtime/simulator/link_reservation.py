"""What lets one message pass at a time, and when it is free: devices, network cards, bad cables.

A way is a number. The first ones stand for what the caller likes; others are made for whatever has a name.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

_ROUNDING = 1e-9
"""Two stretches of time that overlap by so small a part of one of them do not overlap."""


class LinkReservation:
    """When each way is taken. Ask in the order of time: what lies before is forgotten.

    free: from when on a way is free for good. Before that it may have gaps.
    """

    def __init__(self, count: int) -> None:
        self.free = [0.0] * count
        self._gaps: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        self._numbers: dict[tuple[object, ...], int] = {}

    def named(self, *name: object) -> int:
        """The way of this name, a new one if there is none."""
        if name not in self._numbers:
            self._numbers[name] = len(self.free)
            self.free.append(0.0)
        return self._numbers[name]

    def take(self, wanted: Sequence[tuple[int, float]], ready: float) -> float:
        """Take each way for its seconds, all from the first moment when they are free; returns that moment.

        wanted: pairs (way, seconds). ready: the moment before which nothing begins.
        """
        start, before = ready, -math.inf
        while start > before:
            before = start
            for way, seconds in wanted:
                start = self._free_from(way, seconds, start)
        for way, seconds in wanted:
            self._occupy(way, start, start + seconds, ready)
        return start

    def _free_from(self, way: int, seconds: float, start: float) -> float:
        """The first moment from `start` at which a way is free for that long."""
        if start >= self.free[way]:
            return start
        for begin, end in self._gaps.get(way, ()):
            if max(begin, start) + seconds <= end + _ROUNDING * seconds:
                return max(begin, start)
        return self.free[way]

    def _occupy(self, way: int, start: float, end: float, now: float) -> None:
        """Note that a way is taken, and what stays free before that."""
        free, gaps = self.free[way], self._gaps[way]
        if start >= free:
            self.free[way] = end
            gaps.append((free, start))
        else:
            gaps = [rest for gap in gaps for rest in _without(gap, start, end)]
        self._gaps[way] = [(begin, end) for begin, end in gaps if end > max(begin, now)]


def _without(gap: tuple[float, float], start: float, end: float) -> Iterator[tuple[float, float]]:
    """What is left of a gap when the time from start to end is taken out of it."""
    if end <= gap[0] or start >= gap[1]:
        yield gap
        return
    yield gap[0], start
    yield end, gap[1]
