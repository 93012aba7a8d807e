"""Mutants that somebody has argued to be equivalent to the solution: `equivalent/NN_name.toml`.

An entry quotes the line as it is in the solution and in the mutant, and says why nobody can tell the two
apart by what the exercise asks for; `occurrence` counts where several lines read alike. `make mutants` tells
of entries that no longer hold.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mutants.making import Mutant

LISTS = Path(__file__).parent / "equivalent"

Key = tuple[str, str, str, int]


class BadList(Exception):
    """The list cannot be used; the message says what to mend."""


@dataclass(frozen=True, slots=True)
class Equivalent:
    """An entry: which mutant of which exercise, and why nobody can tell it from the solution."""

    exercise: str
    line: str
    mutant: str
    reason: str
    occurrence: int = 1
    """Which one, where several lines of the exercise read alike."""

    @property
    def key(self) -> Key:
        return self.exercise, self.line, self.mutant, self.occurrence


def key(mutant: Mutant) -> Key:
    """What an entry on this mutant has as its key."""
    return mutant.solution.exercise, mutant.before, mutant.after, mutant.occurrence


def read_lists(folder: Path = LISTS) -> dict[Key, Equivalent]:
    """The entries of all files of a folder, by key. Raises BadList."""
    named: dict[Key, Equivalent] = {}
    for path in sorted(folder.glob("*.toml")):
        for entry in _read(path):
            if not entry.reason.strip():
                raise BadList(f"{path}: no reason is given for {entry.mutant!r} in {entry.exercise}.")
            if entry.key in named:
                raise BadList(f"{path}: {entry.mutant!r} in {entry.exercise} is listed twice.")
            named[entry.key] = entry
    return named


def _read(path: Path) -> list[Equivalent]:
    try:
        return [Equivalent(**entry) for entry in tomllib.loads(path.read_text()).get("equivalent", [])]
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise BadList(f"{path}: {error}. An entry has exercise, line, mutant and reason.") from error


def stale(
    listed: Mapping[Key, Equivalent], killed: Mapping[Key, str], made: Iterable[Mutant], names: set[str]
) -> list[str]:
    """A sentence for every entry on the exercises `names` that no longer holds.

    killed: how each mutant that did not survive came to its end.
    """
    there = {key(mutant) for mutant in made}
    sentences = []
    for entry in listed.values():
        which = f"{entry.exercise}: {entry.line!r} as {entry.mutant!r}"
        if entry.exercise in names and entry.key not in there:
            sentences.append(f"{which} is no mutant any more; take it off the list.")
        if entry.key in killed:
            how = killed[entry.key]
            sentences.append(
                f"{which} is not equivalent, its grader sees it ({how:.150}); take it off the list."
            )
    return sentences
