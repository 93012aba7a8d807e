"""Launches of which a row can do without one that comes to no end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from graders.grading.kinds import Kind
from graders.grading.kit import Answer, AnswerFailed, FailureKind, Finding, Rng, compare
from graders.units.unit_07.collective import Collective
from graders.units.unit_07.collectives import Played, play, results
from graders.units.unit_07.worlds import World


@dataclass(frozen=True, slots=True)
class Tries:
    """Launches of which a row can do without one that comes to no end, so that rows after it are judged.

    plays: those that came to an end.
    """

    answer: Answer
    rng: Rng
    collective: Collective
    plays: list[Played] = field(default_factory=list)

    def found(self, worlds: Sequence[World], check: Callable[[Played], Finding]) -> Finding:
        """What `check` finds of a launch, or that there was no end."""
        try:
            self.plays.append(play(self.answer, self.rng, self.collective, worlds))
        except AnswerFailed as failure:
            kind = Kind.DEADLOCK if failure.kind is FailureKind.DEADLOCK else Kind.OTHER
            return Finding(False, f"With {', then '.join(map(str, worlds))}: {failure.report}", kind)
        return check(self.plays[-1])

    def right(self, worlds: Sequence[World]) -> Finding:
        """Passes if results are right in each of the worlds."""
        found = (self.found([world], results) for world in worlds)
        return compare.first_failure(found, f"right with {'; '.join(map(str, worlds))}.")
