"""A step as a graph of tasks, and when each of them runs: data, which a simulation fills in.

A device is whatever does one thing at a time: a processor, and a link just as well, whose tasks are messages.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload


@dataclass(frozen=True, slots=True)
class Task:
    """Something that a device does: which one, by number, and for how many seconds, 0 or more."""

    device: int
    seconds: float


@dataclass(slots=True)
class Timeline:
    """When the tasks of a graph run. Tasks go by their places in `tasks`.

    before, after: for each task those that it waits for, and those that wait for it. ready, end: for each
    task when all before it have ended, and when it has ended itself, in seconds. queues: for each device its
    tasks, in the order in which it runs them.
    """

    tasks: list[Task]
    before: list[list[int]]
    after: list[list[int]]
    ready: list[float]
    end: list[float]
    queues: list[list[int]]

    @property
    def seconds(self) -> float:
        """When the last task has ended."""
        return max(self.end, default=0.0)

    def busy(self, device: int) -> float:
        """Seconds for which a device works."""
        return sum(self.tasks[task].seconds for task in self.queues[device])


class Watched(list[Task]):
    """A list of tasks that keeps which of them were read. Whatever goes through the list reads all of it."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        super().__init__(tasks)
        self.read: set[int] = set()

    @overload
    def __getitem__(self, place: SupportsIndex) -> Task: ...
    @overload
    def __getitem__(self, place: slice) -> list[Task]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Task | list[Task]:
        """One task or several, as of any list."""
        places = range(len(self))[place]
        self.read.update(places if isinstance(places, range) else (places,))
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Task]:
        """All of them."""
        self._all_read()
        return super().__iter__()

    def __reversed__(self) -> Iterator[Task]:
        """All of them."""
        self._all_read()
        return super().__reversed__()

    def __contains__(self, task: object) -> bool:
        """Looks through all of them."""
        self._all_read()
        return super().__contains__(task)

    def __eq__(self, other: object) -> bool:
        """Compares all of them."""
        self._all_read()
        return super().__eq__(other)

    __hash__ = None

    def __add__(self, other: list[Task]) -> list[Task]:  # type: ignore[override]
        """A list of all of them and of others."""
        self._all_read()
        return super().__add__(other)

    def __mul__(self, times: SupportsIndex) -> list[Task]:
        """A list of all of them, so many times."""
        self._all_read()
        return super().__mul__(times)

    __rmul__ = __mul__

    def copy(self) -> list[Task]:
        """A list of all of them."""
        self._all_read()
        return super().copy()

    def index(self, *arguments: Any) -> int:
        """Looks through them."""
        self._all_read()
        return super().index(*arguments)

    def count(self, task: Task) -> int:
        """Looks through all of them."""
        self._all_read()
        return super().count(task)

    def pop(self, place: SupportsIndex = -1) -> Task:
        """Moves those behind it, so all count as read."""
        self._all_read()
        return super().pop(place)

    def _all_read(self) -> None:
        self.read.update(range(len(self)))
