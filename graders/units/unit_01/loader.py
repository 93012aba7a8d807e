"""What `fit` gets its batches from."""

from collections.abc import Callable, Iterator, Sequence

from graders.units.unit_01.watched import Batch


class Loader:
    """Batches in another order in each epoch. It has no length, and nothing but iteration."""

    def __init__(self, batches: Sequence[Batch], *, shuffle: Callable[[], None]) -> None:
        """shuffle: called whenever somebody begins to go through it."""
        self._batches = list(batches)
        self._shuffle = shuffle
        self.passes = 0
        """How often somebody began to go through it."""

    def __iter__(self) -> Iterator[Batch]:
        first = self.passes % max(1, len(self._batches))
        turned = self._batches[first:] + self._batches[:first]
        self.passes += 1
        self._shuffle()
        yield from turned
