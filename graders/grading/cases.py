"""The cases of an exercise: points in a space of features, of which each row of its rubric varies some.

A unit writes its features down as a frozen dataclass whose defaults are the base case, the ordinary one. A
row of a rubric says which values it is about, by `vary` and `both`; see `Criterion`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Features = TypeVar("Features", bound=DataclassInstance)
else:
    Features = TypeVar("Features")

Values = Mapping[str, Any]
"""A change of the base case: feature -> value."""


def vary(**features: Sequence[Any]) -> tuple[Values, ...]:
    """Each value of each feature, one at a time: vary(ranks=(1, 2)) + vary(length=(0,)) are three changes."""
    return tuple({name: value} for name, values in features.items() for value in values)


def both(**features: Any) -> tuple[Values, ...]:
    """One change of several features together: both(ranks=1, root=0)."""
    return (features,)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Some values that a row of the rubric is about. Each is equal to itself only."""

    row: str
    values: Values

    def fits(self, other: "Change") -> bool:
        """Whether a case can have both: they are of different rows, and give no feature two values."""
        return self.row != other.row and not self.values.keys() & other.values.keys()


@dataclass(frozen=True, slots=True)
class Case(Generic[Features]):
    """A point of the space. number: its place among the exercise's cases, by which its inputs are drawn.
    changes: in what it is not the base case, in the rubric's order.
    """

    number: int
    features: Features
    changes: tuple[Change, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that it is about; none for the base case."""
        return tuple(change.row for change in self.changes)


@dataclass(frozen=True)
class Space(Generic[Features]):
    """The cases of one exercise.

    base: the ordinary case. changes: those of all rows, in the rubric's order. possible: whether there is a
    case with these features; what excludes one another is said there, once.
    """

    base: Features
    changes: tuple[Change, ...]
    possible: Callable[[Features], bool] = field(default=lambda features: True)

    @cached_property
    def cases(self) -> tuple[Case[Features], ...]:
        """The base; the base with each change alone; then few cases with several, see `meetings`."""
        alone = ((change,) for change in self.changes if self.features((change,)) is not None)
        chosen = ((), *alone, *self.meetings())
        points = ((self.features(changes), changes) for changes in chosen)
        return tuple(
            Case(number, features, changes)
            for number, (features, changes) in enumerate(points)
            if features is not None
        )

    def with_one_less(self, case: Case[Features]) -> Iterator[Case[Features]]:
        """The cases that lack one of its several changes; their inputs are drawn as its own."""
        for left_out in case.changes if len(case.changes) > 1 else ():
            changes = tuple(change for change in case.changes if change is not left_out)
            features = self.features(changes)
            if features is not None:
                yield Case(case.number, features, changes)

    def meetings(self) -> Iterator[tuple[Change, ...]]:
        """Several changes each: every change meets some change of every other row, where that is possible.

        Greedy, as in Cohen, Dalal, Fredman, Patton, "The AETG system" (1997), section 4: add the change by
        which most further ones meet. That any two changes meet, as there, takes three times as many cases.
        """
        left = {
            (change, row): None
            for change in self.changes
            for row in dict.fromkeys(each.row for each in self.changes)
            if any(self._fit((change,), each) for each in self.changes if each.row == row)
        }
        while left:
            change, row = next(iter(left))
            chosen: tuple[Change, ...] = (change,)
            wanted = [each for each in self.changes if each.row == row]
            while wanted:
                gains = [(self._gain(chosen, each, left), each) for each in wanted]
                gain, best = max(gains, key=lambda each: each[0])
                if not gain:
                    break
                chosen = tuple(sorted([*chosen, best], key=self.changes.index))
                wanted = list(self.changes)
            for one, other in permutations(chosen, 2):
                left.pop((one, other.row), None)
            yield chosen

    def _gain(
        self, chosen: tuple[Change, ...], change: Change, left: Mapping[tuple[Change, str], None]
    ) -> int:
        """How many changes and rows meet if this change comes to those chosen; 0 if it cannot."""
        gain = sum(((each, change.row) in left) + ((change, each.row) in left) for each in chosen)
        return gain if gain and self._fit(chosen, change) else 0

    def _fit(self, chosen: tuple[Change, ...], change: Change) -> bool:
        together = tuple(sorted([*chosen, change], key=self.changes.index))
        return all(change.fits(each) for each in chosen) and self.features(together) is not None

    def features(self, changes: tuple[Change, ...]) -> Features | None:
        """The base case with these changes, if that is possible."""
        values = {name: value for change in changes for name, value in change.values.items()}
        features = replace(self.base, **values)
        return features if self.possible(features) else None
