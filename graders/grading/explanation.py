"""Which row of a rubric a failure belongs to: features explain failures, whatever the exercise is about.

Cases are walked through in order: the base case, the base with one change, then with several. What contains
a change of a row that has failed already tells nothing new, and is passed over. So one cause fails one row,
without a line of code about it:

- the base case fails: the first row does, and nothing else is judged;
- a case with one change fails: the row of this change;
- a case with several changes fails, and with none of them alone: changes are left out as long as it fails
  without them, and of those that stay the row of the last one fails;
- a case fails only after another one, in one launch: the last row of which the two have a change.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from graders.grading.answer import AnswerFailed, FailureKind
from graders.grading.cases import Case, Change, Features, Space
from graders.grading.exercise import Finding


@dataclass(frozen=True, slots=True)
class Tried(Generic[Features]):
    """What came out of a case. seen: what a stage has seen of it, for rows about how it works."""

    case: Case[Features]
    finding: Finding
    seen: Any = None
    after: tuple[Case[Features], ...] = ()
    """The calls that came before it in the same launch, if it fails only after these."""


Run = Callable[[Sequence[Case[Features]]], Sequence[Tried[Features]]]
"""Tries several cases, one after the other, in one go. Raises AnswerFailed if it comes to no end."""


@dataclass
class Explained(Generic[Features]):
    """right: the cases that came out right. failed: row -> the case that tells of it."""

    right: list[Tried[Features]] = field(default_factory=list)
    failed: dict[str, Tried[Features]] = field(default_factory=dict)

    def judges(self, case: Case[Features]) -> bool:
        """Whether none of its rows has failed: else it tells nothing of another row."""
        return not any(row in self.failed for row in case.rows)

    @property
    def alone(self) -> list[Change]:
        """The changes of one feature that fail alone."""
        changes = (tried.case.changes for tried in self.failed.values() if not tried.after)
        return [each[0] for each in changes if len(each) == 1 and len(each[0].values) == 1]


def explained(
    space: Space[Features],
    rows: Sequence[str],
    run: Run[Features],
    together: Callable[[Case[Features]], Hashable],
) -> Explained[Features]:
    """Try all cases of a space, and explain what fails by the rows, in the rubric's order.

    together: cases for which it is the same share a run; None: this one has its own. Only where a run fails,
    each of its cases is tried alone. Raises AnswerFailed if the base case comes to no end.
    """
    base, *others = space.cases
    [tried] = run([base])
    if not tried.finding.passed:
        return Explained(failed={rows[0]: tried})
    walk = _Walk(space, run, rows, Explained(right=[tried]))
    # Those of one run that is all right need no explanation, and for most answers there is no other.
    left = [group for group in _groups(others, together) if not walk.all_right(group)]
    for several in (False, True):
        for group in left:
            walk.through([case for case in group if (len(case.changes) > 1) is several])
    return walk.told


@dataclass
class _Walk(Generic[Features]):
    space: Space[Features]
    run: Run[Features]
    rows: Sequence[str]
    told: Explained[Features]

    def through(self, cases: Sequence[Case[Features]]) -> None:
        """Try cases in one run, and where it fails each alone; what fails in no run of its own, in turn."""
        cases = [case for case in cases if self._tells(case)]
        if not cases or self.all_right(cases):
            return
        alone = [case for case in cases if self._tells(case) and self._right(case)]
        if len(alone) > 1 and not all(each.finding.passed for each in self._try(alone)):
            self._in_turn(alone)

    def _tells(self, case: Case[Features]) -> bool:
        """Whether it may tell something new. A change of several features does not, if a change of one of
        them alone has failed.
        """
        if not self.told.judges(case):
            return False
        failed = {name for change in self.told.alone for name in change.values}
        return not any(len(each.values) > 1 and failed & each.values.keys() for each in case.changes)

    def all_right(self, cases: Sequence[Case[Features]]) -> bool:
        """Whether all are right in one run. One alone that is not is explained at once; it is not tried if
        it can tell nothing new.
        """
        if len(cases) == 1:
            return not self._tells(cases[0]) or self._right(cases[0])
        tried = self._try(cases)
        right = all(each.finding.passed for each in tried)
        self.told.right += tried if right else []
        return right

    def _right(self, case: Case[Features]) -> bool:
        [tried] = self._try([case])
        if tried.finding.passed:
            self.told.right.append(tried)
        else:
            self._failed(self._smallest(tried))
        return tried.finding.passed

    def _smallest(self, tried: Tried[Features]) -> Tried[Features]:
        """A case that fails, with no change that it would fail without."""
        for smaller in self.space.with_one_less(tried.case):
            [again] = self._try([smaller])
            if not again.finding.passed:
                return self._smallest(again)
        return tried

    def _failed(self, tried: Tried[Features]) -> None:
        about = {row for case in (*tried.after, tried.case) for row in case.rows}
        row = next((row for row in reversed(self.rows) if row in about), self.rows[0])
        self.told.failed.setdefault(row, tried)

    def _in_turn(self, cases: Sequence[Case[Features]]) -> None:
        """Each is right alone, and together they are not: find the first that is wrong after others, and
        one before it that suffices.
        """
        for number in range(2, len(cases) + 1):
            *before, last = cases[:number]
            tried = self._try([*before, last])
            if all(each.finding.passed for each in tried):
                continue
            for one in before:
                pair = self._try([one, last])
                if not all(each.finding.passed for each in pair):
                    before, tried = [one], pair
                    break
            found = next(each for each in tried if not each.finding.passed)
            self._failed(Tried(last, found.finding, found.seen, tuple(before)))
            return

    def _try(self, cases: Sequence[Case[Features]]) -> Sequence[Tried[Features]]:
        try:
            return self.run(cases)
        except AnswerFailed as failure:
            if failure.kind is FailureKind.NOT_ATTEMPTED:
                raise
            return [Tried(cases[-1], Finding(False, failure.report, failure=failure))]


def _groups(
    cases: Sequence[Case[Features]], together: Callable[[Case[Features]], Hashable]
) -> Iterator[list[Case[Features]]]:
    """Cases that share a run, in the order of the first of each."""
    groups: dict[Hashable, list[Case[Features]]] = {}
    for number, case in enumerate(cases):
        key = together(case)
        groups.setdefault(("alone", number) if key is None else ("together", key), []).append(case)
    yield from groups.values()
