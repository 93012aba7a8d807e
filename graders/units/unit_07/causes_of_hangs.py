"""The grader of `causes_of_hangs`."""

from graders.grading import compare
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    PlainData,
    Rng,
    exercise,
)
from graders.units.drivers import call

CAUSES = {
    "swap": "all receive first",
    "shift": "all send first",
    "report": "a collective that some ranks skip",
    "grid_sums": "groups made in different orders",
    "collect": "more receives than sends",
    "chain": "a barrier after an error",
}
"""The programs of the lab, by name, and why each hangs."""


@exercise(
    minutes=15,
    difficulty=2,
    rubric=tuple(
        Criterion(
            program, 1, f'Read in the report of "{program}" who waits in which call, and for whom.', needs=()
        )
        for program in CAUSES
    ),
    hints=(
        'Who waits for whom to "send" or to "receive"? Where ranks call different things: which calls meet '
        "that do not match?",
        "A circle in which everyone waits for a send and one in which everyone waits for a receive are two "
        "different mistakes.",
        "Where the calls that do not match are new_group's, look at the order in which groups were made.",
    ),
)
def causes_of_hangs(answer: Answer, rng: Rng) -> Findings:
    """Six reports, six causes."""
    named = answer.call(call)
    if type(named) is not dict:
        said = f"Returned {named!r:.60}; expected a dictionary with six entries."
        raise AnswerFailed(FailureKind.NOT_ASKED, said)
    for program in CAUSES:
        yield program, cause(program, named)


def cause(program: str, named: dict[str, PlainData]) -> Finding:
    """Passes if `named`, the student's dictionary, has the program's cause."""
    seen = named.get(program)
    if seen is None:
        return Finding(False, f'no cause is named for "{program}".')
    # The right one is not told: there are only six.
    known = "" if any(compare.same(seen, each) for each in CAUSES.values()) else ", none of the six causes"
    text = f'the cause named for "{program}" is "{seen!s:.60}"{known}.'
    return Finding(compare.same(seen, CAUSES[program]), text)
