"""Unit 03: five saves of an answer, and what was seen of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from graders.grading.kit import Answer, AnswerFailed, FailureKind, Rng, compare
from graders.units.unit_03.drivers import files as drivers
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import Change, SavedFile, SavingReply
from graders.units.unit_03.states import State, draw_state


@dataclass(frozen=True)
class Saves:
    """Five states, and what a folder held while they were saved there."""

    states: Sequence[State]
    seen: SavingReply
    path: str = "step-7.pt"

    @classmethod
    def drawn(cls, answer: Answer, rng: Rng) -> "Saves":
        """Five saves, of which one is killed at a place that is drawn."""
        states = [draw_state(rng, step) for step in range(5)]
        # The one that is watched is so small that Python's buffer may keep all of it.
        states[1]["model"] = {name: values[:5].clone() for name, values in states[1]["model"].items()}
        saves = cls(states, answer.call(drivers.saving, states, rng.integer(100, 900) / 1000))
        if not saves.contents:
            raise AnswerFailed(FailureKind.UNREADABLE, "Nobody told what the folder held.")
        return saves

    @property
    def contents(self) -> list[tuple[int, SavedFile | None]]:
        """Of the second save: see `Watched.contents`."""
        return Watched(self.path, self.seen.changes).contents

    @property
    def alone_right(self) -> bool:
        """Whether a path that is a name alone works."""
        return self.seen.here == RETURNED and compare.same(self.seen.here_saved.state, self.states[4])

    @property
    def watched(self) -> "list[Watched]":
        """The second save, and that of a name alone, if it works."""
        alone = [Watched("step-9.pt", self.seen.here_changes)] if self.alone_right else []
        return [Watched(self.path, self.seen.changes), *alone]


@dataclass(frozen=True)
class Watched:
    """A save of which every change in the folder was seen. path: its checkpoint's name."""

    path: str
    changes: Sequence[Change]

    @property
    def how(self) -> str:
        """The case, to be said after what was seen: empty for the ordinary one."""
        alone = f" Its path was Path({self.path!r}), in the working directory, and there was no such file."
        return "" if self.path == Saves.path else alone

    @property
    def contents(self) -> list[tuple[int, SavedFile | None]]:
        """Place of each change among all, and the checkpoint's file after it, None if it has none."""
        changes = enumerate(self.changes)
        return [(place, each.files.get(self.path)) for place, each in changes if each.files is not None]
