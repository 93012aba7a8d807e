"""Kinds of failure that any exercise may show, and what to look at for each: hints by what was seen."""

from enum import StrEnum


class Kind(StrEnum):
    """What was seen, in words that end a sentence about a check."""

    OTHER = ""
    DEADLOCK = "a deadlock"
    MISMATCH = "calls that do not match"
    TIMED_OUT = "no end within the time"
    SCALED = "the right result times a number"
    REORDERED = "the right numbers in another order"
    LACKS_A_RANK = "a sum that lacks a rank"
    OTHER_SHAPE = "another shape or dtype"
    TOO_MUCH = "more calls, messages or bytes than are needed"


NOTHING_CAME = frozenset({Kind.DEADLOCK, Kind.MISMATCH, Kind.TIMED_OUT})
"""The answer came to no end, so nothing came out that a first criterion's hint could be about."""

HINTS = {
    Kind.DEADLOCK: "Take the ranks that wait one by one: which line of which other rank would end the wait? "
    "If they all wait in the same line, which of them could do something else first?",
    Kind.MISMATCH: "Write down each rank's calls in order, with the shapes. At which call do two ranks "
    "differ first, and which `if` or loop has led them there?",
    Kind.TIMED_OUT: "Which loop does not end, or goes round far too often? Print what its condition reads, "
    "on the smallest case.",
    Kind.SCALED: "Where does this factor come from? Look for a number of ranks, batches or micro-batches "
    "that is multiplied or divided by once too often, or not at all.",
    Kind.REORDERED: "Give two or three ranks values that you recognise, such as the rank's number. Which "
    "value came from where, and which line decides its place?",
    Kind.LACKS_A_RANK: "Whose part is missing, and on which ranks? Give each rank a power of ten: from which "
    "rank to which has its digit to travel, and which message or which addition does it lack?",
    Kind.OTHER_SHAPE: "Print shape and dtype after each line. After which one are they no longer what the "
    "specification says?",
    Kind.TOO_MUCH: "Count by hand what each of two or three ranks has to send. `launch(...).traffic` and "
    "`.timeline()` show what your answer sends: which message is not in your count?",
}
"""For each kind a question, and where to look."""


def kind_with(hint: str) -> Kind:
    """The kind whose hint this is, or ends with."""
    return next((kind for kind, text in HINTS.items() if hint.endswith(text)), Kind.OTHER)
