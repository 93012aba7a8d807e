"""Mutants that somebody has argued to be equivalent to the solution: `equivalent.toml`."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mutants.making import Mutant

LIST = Path(__file__).parent / "equivalent.toml"

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


def read_list(path: Path = LIST) -> dict[Key, Equivalent]:
    """The entries by key. Raises BadList."""
    try:
        entries = tomllib.loads(path.read_text()).get("equivalent", [])
        listed = [Equivalent(**entry) for entry in entries]
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise BadList(f"{path}: {error}. An entry has exercise, line, mutant and reason.") from error
    for entry in listed:
        if not entry.reason.strip():
            raise BadList(f"{path}: no reason is given for {entry.mutant!r} in {entry.exercise}.")
    named = {entry.key: entry for entry in listed}
    if len(named) < len(listed):
        twice = next(entry for entry in listed if named[entry.key] is not entry)
        raise BadList(f"{path}: {twice.mutant!r} in {twice.exercise} is listed twice.")
    return named


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
