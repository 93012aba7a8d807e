"""Texts that may be endless, made fit to be kept and shown."""

import io
from collections.abc import Sequence

PRINTED_CHARACTERS = 20_000
"""So much of what an answer prints is kept."""


class BoundedText(io.TextIOBase):
    """A file that keeps the beginning of what is written to it and drops the rest."""

    def __init__(self, limit: int = PRINTED_CHARACTERS) -> None:
        self._parts: list[str] = []
        self._room = limit

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._room > 0:
            self._parts.append(text[: self._room])
            self._room -= len(text)
            if self._room <= 0:
                self._parts.append("\n... the rest is not kept\n")
        return len(text)

    def text(self) -> str:
        """What was kept."""
        return "".join(self._parts)


def bounded(text: str) -> str:
    """The beginning of a text."""
    kept = BoundedText()
    kept.write(text)
    return kept.text()


def shortened(text: str, characters: int) -> str:
    """The text if it is not longer than that, else its beginning and dots."""
    return text if len(text) <= characters else text[: characters - 4] + " ..."


def joined(outputs: Sequence[str]) -> str:
    """What the ranks of a launch printed, every line labelled with its rank; the beginning of it."""
    labelled = BoundedText()
    for rank, text in enumerate(outputs):
        for line in text.splitlines():
            labelled.write(f"[rank {rank}] {line}\n")
    return labelled.text()
